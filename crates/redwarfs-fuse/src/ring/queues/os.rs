//! The interface between kernel and driver for FUSE over io_uring: the memory of the entries, and the
//! commands that pass an entry from one to the other.
//!
//! An entry holds one request and then its reply. Either the kernel has the entry, or there is one
//! [`Slot`] for it. So the owner of the slot may write to the memory of the entry. Layouts are those of
//! the system header `linux/fuse.h` (`fuse_uring_req_header`, `fuse_uring_cmd_req`).
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::device::Device;
use crate::proto::MAX_REQUEST;

/// Entries of a queue: the requests of one CPU that can be pending at the same time.
pub(super) const DEPTH: u16 = 16;
/// Room for a reply in bytes.
const PAYLOAD: usize = MAX_REQUEST as usize;

/// Size of the headers of an entry, and their distance in memory.
const HEADERS: usize = 288;
const STRIDE: usize = 512;
/// Offset in the headers of the first argument of a request, which has room for as many bytes, and
/// offset of the part for the entry itself.
const ARGUMENT: usize = 128;
const ENTRY: usize = 256;
/// In that part: the id that the reply must name, and the size of the payload.
const COMMIT_ID: usize = ENTRY + 8;
const PAYLOAD_SIZE: usize = ENTRY + 16;
/// Sizes of the headers of a request and of a reply.
const REQUEST: usize = 40;
const ANSWER: usize = 16;

/// Commands for the device.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Offsets of the fields `addr` and `len` in a submission.
const SUBMISSION_ADDRESS: usize = 16;
const SUBMISSION_LEN: usize = 24;
/// User data of completions for the event descriptor.
const WAKE: u64 = u64::MAX;
/// Submissions between two calls: every entry, and the event descriptor.
const SUBMISSIONS: u32 = (DEPTH as u32 * 2).next_power_of_two();
/// For `io_uring_enter`: process completions, and do not count the wait as one for a disk.
const ENTER_GETEVENTS: u32 = 1;
const ENTER_NO_IOWAIT: u32 = 1 << 7;

/// Memory of all entries of a queue. Pages take memory when they are written to.
pub(super) struct Area {
    base: NonNull<u8>,
}

/// Offset of the payloads.
const PAYLOADS: usize = (DEPTH as usize * STRIDE).next_multiple_of(1 << 16);
/// Size of an area.
const AREA: usize = PAYLOADS + DEPTH as usize * PAYLOAD;

// SAFETY: the memory belongs to no thread, and is only reached through slots, of which there is one
// for each part of it.
unsafe impl Send for Area {}
// SAFETY: as above; the area itself gives no access.
unsafe impl Sync for Area {}

impl Area {
    /// New memory, all zeros.
    ///
    /// # Errors
    /// There is not enough address space.
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: makes new memory at a place that the system chooses.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                AREA,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        let area = Self {
            base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?,
        };
        // SAFETY: the range is the new memory. With this advice a small reply does not take a huge
        // page. A system without huge pages refuses the advice, which has the same effect.
        let _ = unsafe { madvise(base, AREA, Advice::LinuxNoHugepage) };
        Ok(Arc::new(area))
    }

    /// The headers and the payload of an entry: start and size. `index` is below DEPTH.
    fn places(&self, index: u16) -> [(*mut u8, usize); 2] {
        let base = self.base.as_ptr();
        let index = usize::from(index);
        [
            (base.wrapping_add(index * STRIDE), HEADERS),
            (base.wrapping_add(PAYLOADS + index * PAYLOAD), PAYLOAD),
        ]
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range. No slot and no ring is left, because each of them holds the
        // area. The kernel writes here only inside calls of the thread that owns the ring, so without
        // the ring it does not write.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), AREA) };
    }
}

/// An entry that the driver has.
pub(super) struct Slot {
    area: Arc<Area>,
    index: u16,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slot").field(&self.index).finish()
    }
}

impl Slot {
    /// Headers and payload.
    fn parts(&mut self) -> [&mut [u8]; 2] {
        self.area.places(self.index).map(|(start, len)| {
            // SAFETY: `index` is below DEPTH, so the range lies in the area, which lives as long as
            // this slot and is initialised (with zeros, by the system). The two ranges do not
            // overlap, nor do those of different entries. Nothing else accesses them: there is one
            // slot for each entry, borrowed here, and the kernel has returned the entry.
            unsafe { slice::from_raw_parts_mut(start, len) }
        })
    }

    fn headers(&mut self) -> &mut [u8] {
        let [headers, _] = self.parts();
        headers
    }

    fn number<const N: usize>(&mut self, at: usize) -> [u8; N] {
        let bytes = self.headers().get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.headers().get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Number of the entry in its queue.
    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// Number of the request, which the reply must name.
    pub(super) fn unique(&mut self) -> u64 {
        u64::from_ne_bytes(self.number(8))
    }

    /// Assembles the request in the form that it has on the device. Returns false if its sizes contradict
    /// each other.
    pub(super) fn request(&mut self, message: &mut Vec<u8>) -> bool {
        message.clear();
        let len = u32::from_ne_bytes(self.number(0)) as usize;
        let rest = u32::from_ne_bytes(self.number(PAYLOAD_SIZE)) as usize;
        let Some(first) = len.checked_sub(REQUEST + rest) else {
            return false;
        };
        let [headers, payload] = self.parts();
        let argument = headers.get(ARGUMENT..ENTRY).unwrap_or_default();
        let (Some(header), Some(argument), Some(rest)) = (
            headers.get(..REQUEST),
            argument.get(..first),
            payload.get(..rest),
        ) else {
            return false;
        };
        message.extend_from_slice(header);
        message.extend_from_slice(argument);
        message.extend_from_slice(rest);
        true
    }

    /// Writes the reply: an error, which is 0 or negative, or the parts. Returns false if they do not fit.
    pub(super) fn answer(
        &mut self,
        unique: u64,
        error: i32,
        parts: &mut dyn Iterator<Item = &[u8]>,
    ) -> bool {
        let mut used = 0;
        let [_, payload] = self.parts();
        for part in parts {
            let Some(place) = payload
                .get_mut(used..)
                .and_then(|room| room.get_mut(..part.len()))
            else {
                return false;
            };
            place.copy_from_slice(part);
            used += part.len();
        }
        // At most PAYLOAD, which is below 4 GiB.
        let size = used as u32;
        self.set(0, &(ANSWER as u32 + size).to_ne_bytes());
        self.set(4, &error.to_ne_bytes());
        self.set(8, &unique.to_ne_bytes());
        self.set(PAYLOAD_SIZE, &size.to_ne_bytes());
        true
    }
}

/// The meaning of a completion.
#[derive(Debug)]
pub(super) enum Event {
    /// The entry has a request.
    Request(Slot),
    /// The kernel has dropped the entry.
    Lost(Errno),
    /// The event descriptor was written to.
    Woken,
    /// The kernel has stopped watching the event descriptor.
    Unwatched,
}

/// The ring of one queue. Only the thread that made it can use it: the kernel refuses others.
pub(super) struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: Arc<Device>,
    queue: u16,
    area: Arc<Area>,
    /// Which entries the kernel has.
    given: [bool; DEPTH as usize],
    /// Headers and payload of each entry, which the kernel looks up when the entry is registered.
    places: Vec<[libc::iovec; 2]>,
    flags: u32,
}

impl Ring {
    /// A ring for queue number `queue` of the connection of `device`.
    ///
    /// # Errors
    /// io_uring is missing or not allowed, or there is not enough memory.
    pub(super) fn new(device: &Arc<Device>, queue: u16) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // With DEFER_TASKRUN the kernel writes to our memory only inside calls of this thread.
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all();
        let ring: IoUring<squeue::Entry128, cqueue::Entry> = builder.build(SUBMISSIONS)?;
        let area = Area::new()?;
        let places = (0..DEPTH).map(|index| {
            area.places(index).map(|(start, len)| libc::iovec {
                iov_base: start.cast(),
                iov_len: len,
            })
        });
        let no_iowait = ring.params().is_feature_no_iowait();
        Ok(Self {
            places: places.collect(),
            area,
            device: Arc::clone(device),
            queue,
            given: [false; DEPTH as usize],
            flags: ENTER_GETEVENTS | if no_iowait { ENTER_NO_IOWAIT } else { 0 },
            ring,
        })
    }

    /// Prepares to offer all entries to the kernel, and to get an event when `wake` is written to. The next
    /// call of [`Ring::enter`] does both.
    ///
    /// # Errors
    /// There is no room for all submissions.
    pub(super) fn register(&mut self, wake: BorrowedFd<'_>) -> io::Result<()> {
        self.watch(wake)?;
        for index in 0..DEPTH {
            let mut submission = self.command(REGISTER, index, 0);
            let places = self.places.get(usize::from(index));
            // The io_uring crate has no setter for this field.
            set_places(&mut submission, places.map_or(ptr::null(), ptr::from_ref));
            self.push(&submission)?;
            if let Some(given) = self.given.get_mut(usize::from(index)) {
                *given = true;
            }
        }
        Ok(())
    }

    /// Requests an event for each write to `wake`, which must stay open as long as the ring.
    ///
    /// # Errors
    /// There is no room for another submission.
    pub(super) fn watch(&mut self, wake: BorrowedFd<'_>) -> io::Result<()> {
        let watch = opcode::PollAdd::new(types::Fd(wake.as_raw_fd()), libc::POLLIN as u32);
        let submission = watch.multi(true).build().user_data(WAKE);
        self.push(&submission.into())
    }

    /// Returns an entry with a reply to the kernel, which then uses it for the next request. The next call
    /// of [`Ring::enter`] does this.
    ///
    /// # Errors
    /// There is no room for another submission.
    pub(super) fn commit(&mut self, mut slot: Slot) -> io::Result<()> {
        let id = u64::from_ne_bytes(slot.number(COMMIT_ID));
        let submission = self.command(COMMIT_AND_FETCH, slot.index, id);
        self.push(&submission)?;
        if let Some(given) = self.given.get_mut(usize::from(slot.index)) {
            *given = true;
        }
        Ok(())
    }

    fn command(&self, command: u32, index: u16, id: u64) -> squeue::Entry128 {
        // Flags, id, queue, padding.
        let mut area = [0; 80];
        for (place, byte) in area.iter_mut().skip(8).zip(id.to_ne_bytes()) {
            *place = byte;
        }
        for (place, byte) in area.iter_mut().skip(16).zip(self.queue.to_ne_bytes()) {
            *place = byte;
        }
        opcode::UringCmd80::new(types::Fd(self.device.as_fd().as_raw_fd()), command)
            .cmd(area)
            .build()
            .user_data(u64::from(index))
    }

    fn push(&mut self, submission: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the descriptors that submissions name are open as long as the ring is used: the ring
        // holds the device, and the caller of `watch` keeps the other descriptor open. A registration
        // names memory of `places` and of the area, which live as long as the ring. Entries that the
        // kernel has have no slot.
        let pushed = unsafe { self.ring.submission().push(submission) };
        // Each entry and the watch are in the queue at most once, so there is room.
        pushed.map_err(|full| io::Error::other(full.to_string()))
    }

    /// Submits everything, and lets the kernel deliver completions. With `wait`, waits for an event.
    ///
    /// # Errors
    /// The error of the system. The call may be repeated.
    pub(super) fn enter(&mut self, wait: bool) -> io::Result<()> {
        let submissions = self.ring.submission().len();
        // SAFETY: the numbers are valid, and there is no further argument.
        unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(
                submissions as u32,
                u32::from(wait),
                self.flags,
                None,
            )
        }?;
        Ok(())
    }

    /// The next event; none if there is none.
    pub(super) fn event(&mut self) -> Option<Event> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() == WAKE {
                return Some(if cqueue::more(completion.flags()) {
                    Event::Woken
                } else {
                    Event::Unwatched
                });
            }
            let Ok(index) = u16::try_from(completion.user_data()) else {
                continue;
            };
            // Only an entry that the kernel had can come back, so there is never a second slot.
            let given = self.given.get_mut(usize::from(index)).map(std::mem::take);
            if given != Some(true) {
                continue;
            }
            return Some(match completion.result() {
                0.. => Event::Request(Slot {
                    area: Arc::clone(&self.area),
                    index,
                }),
                error => Event::Lost(Errno::from_raw_os_error(error.saturating_neg())),
            });
        }
    }
}

/// Writes the address of the two places of an entry into its registration.
fn set_places(submission: &mut squeue::Entry128, places: *const [libc::iovec; 2]) {
    let start = ptr::from_mut(submission).cast::<u8>();
    // SAFETY: a submission is 128 bytes, aligned to 8, in the layout of `struct io_uring_sqe`: numbers
    // without a forbidden value. The address is in the eight bytes at 16, the number of places in the
    // four bytes at 24.
    unsafe {
        start
            .add(SUBMISSION_ADDRESS)
            .cast::<u64>()
            .write(places.addr() as u64);
        start.add(SUBMISSION_LEN).cast::<u32>().write(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{self, op};

    fn slot(index: u16) -> Slot {
        Slot {
            area: Area::new().expect("address space"),
            index,
        }
    }

    /// Puts a request into an entry as the kernel does.
    fn ask(slot: &mut Slot, len: u32, argument: &[u8], rest: &[u8]) {
        slot.set(0, &len.to_ne_bytes());
        slot.set(4, &op::READ.to_ne_bytes());
        slot.set(8, &77u64.to_ne_bytes());
        slot.set(ARGUMENT, argument);
        slot.set(PAYLOAD_SIZE, &(rest.len() as u32).to_ne_bytes());
        let [_, payload] = slot.parts();
        payload[..rest.len()].copy_from_slice(rest);
    }

    #[test]
    fn requests_are_put_together() {
        let mut message = Vec::new();
        for index in [0, DEPTH - 1] {
            let mut slot = slot(index);
            ask(&mut slot, 40 + 8 + 5, b"argument", b"name\0");
            assert!(slot.request(&mut message));
            let (header, mut body) = proto::parse(&message).expect("a whole request");
            assert_eq!((header.unique, slot.unique()), (77, 77));
            assert_eq!(body.u64(), Some(u64::from_ne_bytes(*b"argument")));
            assert_eq!(body.name(), Some(&b"name"[..]));
            // As for LOOKUP.
            ask(&mut slot, 40 + 5, b"", b"name\0");
            assert!(slot.request(&mut message) && message.ends_with(b"name\0"));
            // Shorter than its parts, and longer than an argument can be.
            for len in [0, 39, 40, 44, 40 + 5 + 129, u32::MAX] {
                ask(&mut slot, len, b"", b"name\0");
                assert!(!slot.request(&mut message), "{len} bytes");
            }
            ask(&mut slot, 40, b"", b"");
            slot.set(PAYLOAD_SIZE, &u32::MAX.to_ne_bytes());
            assert!(!slot.request(&mut message));
        }
    }

    #[test]
    fn answers_fill_the_entry_and_no_more() {
        let mut slot = slot(DEPTH - 1);
        let whole = vec![7; PAYLOAD - 3];
        assert!(slot.answer(5, 0, &mut [&b"abc"[..], &whole].into_iter()));
        let size = PAYLOAD as u32;
        assert_eq!(u32::from_ne_bytes(slot.number(0)), 16 + size);
        assert_eq!(u32::from_ne_bytes(slot.number(PAYLOAD_SIZE)), size);
        let [_, payload] = slot.parts();
        assert!(payload.starts_with(b"abc\x07") && payload.ends_with(&[7]));
        assert!(!slot.answer(5, 0, &mut [&b"abcd"[..], &whole].into_iter()));
        assert!(slot.answer(6, -5, &mut std::iter::empty()));
        assert_eq!(u32::from_ne_bytes(slot.number(0)), 16);
        assert_eq!(i32::from_ne_bytes(slot.number(4)), -5);
        assert_eq!(slot.unique(), 6);
        assert_eq!(u32::from_ne_bytes(slot.number(PAYLOAD_SIZE)), 0);
    }

    #[test]
    fn registrations_name_two_places() {
        let command = opcode::UringCmd80::new(types::Fd(3), REGISTER);
        let mut submission = command.build().user_data(9);
        let places = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; 2];
        set_places(&mut submission, &raw const places);
        // SAFETY: a submission is 128 bytes, all of which its builder has set.
        let bytes = unsafe { &*ptr::from_ref(&submission).cast::<[u8; 128]>() };
        let address = (&raw const places).addr() as u64;
        assert_eq!(bytes[16..24], address.to_ne_bytes());
        assert_eq!(bytes[24..28], 2u32.to_ne_bytes());
        assert_eq!(bytes[32..40], 9u64.to_ne_bytes());
    }
}
