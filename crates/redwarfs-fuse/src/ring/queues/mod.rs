//! The queues, and the threads that serve them.

mod os;
mod queue;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use tracing::{debug, error};

use crate::device::Device;
use crate::driver::Driver;
use crate::proto;
use crate::ticket::{Ticket, Transport};

use os::{Area, DEPTH, Event, Ring, Slot};
use queue::{Queue, descriptor};

/// Whether queues are supported on this CPU.
pub(crate) const AVAILABLE: bool = true;
/// Largest number of pending readahead requests, for which no process waits. It is below the number of
/// entries, so that some are left for other requests.
const MAX_BACKGROUND: u16 = DEPTH / 4 * 3;
/// The CPUs that the system may have; the kernel has a queue for each.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// Descriptors that must stay free for other uses.
const SPARE: usize = 16;
/// How long a thread waits if the system refuses a call that cannot fail.
const PAUSE: Duration = Duration::from_millis(100);

/// The result of a step of a thread.
type Report = Result<(), io::Error>;

/// The queues of a connection, ready to be registered.
#[derive(Debug)]
pub(crate) struct Queues {
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    queue: Arc<Queue>,
    go: Sender<Arc<Driver>>,
    reports: Receiver<Report>,
    handle: Option<JoinHandle<()>>,
}

impl Queues {
    /// Makes everything that can fail, before the driver promises queues to the kernel.
    ///
    /// # Errors
    /// io_uring does not work here, or there is not enough memory or threads.
    pub(crate) fn prepare(device: &Arc<Device>) -> io::Result<Self> {
        let count = cpus(&std::fs::read_to_string(POSSIBLE)?)
            .ok_or_else(|| io::Error::other(format!("cannot understand {POSSIBLE}")))?;
        let mut all = Self {
            threads: Vec::new(),
        };
        for number in 0..count {
            all.threads.push(Thread::start(device, number)?);
        }
        for thread in &all.threads {
            thread.report()?;
        }
        // If descriptors or address space are short, the rest is needed for other uses.
        let descriptors: io::Result<Vec<OwnedFd>> = (0..SPARE).map(|_| descriptor()).collect();
        let space = Area::new();
        descriptors.and(space)?;
        Ok(all)
    }

    /// Number of requests for which no process waits that the kernel may send at a time.
    pub(crate) fn max_background(&self) -> u16 {
        MAX_BACKGROUND
    }

    /// Offers the entries to the kernel, which has agreed to use them, and starts to serve requests.
    ///
    /// # Errors
    /// The kernel refuses all entries of a queue; then it sends requests through the device.
    pub(crate) fn start(self, driver: &Arc<Driver>) -> io::Result<Self> {
        for thread in &self.threads {
            // A thread that has ended has reported why.
            let _ = thread.go.send(Arc::clone(driver));
        }
        let mut result = Ok(());
        for thread in &self.threads {
            result = result.and(thread.report());
        }
        result?;
        debug!(
            "requests come over io_uring: {} queues of {DEPTH}",
            self.threads.len()
        );
        Ok(self)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        for thread in &self.threads {
            thread.queue.end();
        }
        for thread in self.threads.drain(..) {
            drop(thread.go);
            if let Some(handle) = thread.handle {
                // Panics in requests are caught elsewhere.
                let _ = handle.join();
            }
        }
    }
}

impl Thread {
    fn start(device: &Arc<Device>, number: u16) -> io::Result<Self> {
        let queue = Queue::new()?;
        let (go, started) = channel();
        let (report, reports) = channel();
        let handle = {
            let queue = Arc::clone(&queue);
            let device = Arc::clone(device);
            Builder::new()
                .name(format!("fuse-cpu-{number}"))
                .spawn(move || live(&device, number, &queue, &started, &report))?
        };
        Ok(Self {
            queue,
            go,
            reports,
            handle: Some(handle),
        })
    }

    fn report(&self) -> io::Result<()> {
        let gone = |_| Err(io::Error::other("a thread ended"));
        self.reports.recv().unwrap_or_else(gone)
    }
}

/// The thread of a queue: makes the ring, waits for the driver, registers, and serves.
fn live(
    device: &Arc<Device>,
    number: u16,
    queue: &Arc<Queue>,
    started: &Receiver<Arc<Driver>>,
    report: &Sender<Report>,
) {
    stay_on(number);
    let mut ring = match Ring::new(device, number) {
        Ok(ring) => ring,
        Err(error) => return tell(report, Err(error)),
    };
    tell(report, Ok(()));
    let Ok(driver) = started.recv() else {
        return;
    };
    let mut events = Vec::new();
    let registered = register(&mut ring, queue, &mut events);
    let failed = registered.is_err();
    tell(report, registered);
    if !failed {
        serve(&mut ring, queue, &driver, events);
    }
}

fn tell(report: &Sender<Report>, what: Report) {
    // If nobody receives the report, `start` has failed already.
    let _ = report.send(what);
}

/// Binds the thread to the CPU whose requests it serves. If that is not allowed, or the CPU is offline,
/// the thread may run anywhere.
fn stay_on(cpu: u16) {
    let cpu = usize::from(cpu);
    if cpu < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Offers all entries. One entry is enough for a queue, so this fails only if the kernel takes none.
fn register(ring: &mut Ring, queue: &Queue, events: &mut Vec<Event>) -> io::Result<()> {
    ring.register(queue.wake())?;
    while let Err(error) = ring.enter(false) {
        if !is_passing(&error) {
            return Err(error);
        }
    }
    let (mut lost, mut reason) = (0, None);
    while let Some(event) = ring.event() {
        match event {
            Event::Lost(errno) => {
                lost += 1;
                reason = Some(errno);
            }
            event => events.push(event),
        }
    }
    match reason {
        Some(errno) if lost == DEPTH => Err(errno.into()),
        _ => Ok(()),
    }
}

/// Whether a failed call can be repeated at once.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)
    )
}

/// Serves requests until the connection ends.
fn serve(ring: &mut Ring, queue: &Arc<Queue>, driver: &Driver, mut events: Vec<Event>) {
    let mut message = Vec::new();
    let mut out = Vec::new();
    let mut answered = Vec::new();
    loop {
        for event in events.drain(..) {
            match event {
                Event::Request(slot) => answer(slot, queue, driver, &mut message, &mut out),
                Event::Woken => {}
                Event::Unwatched => keep(ring.watch(queue.wake())),
                Event::Lost(Errno::NOTCONN | Errno::CANCELED) => return,
                Event::Lost(errno) => debug!("the kernel drops an entry: {errno}"),
            }
        }
        if !queue.take_answered(&mut answered) {
            return;
        }
        for slot in answered.drain(..) {
            keep(ring.commit(slot));
        }
        keep(ring.enter(true));
        queue.has_woken();
        events.extend(std::iter::from_fn(|| ring.event()));
    }
}

/// Ignores the failure of a call, because the next call does its work.
fn keep(result: io::Result<()>) {
    if let Err(error) = result
        && !is_passing(&error)
    {
        error!("io_uring: {error}");
        sleep(PAUSE);
    }
}

fn answer(
    mut slot: Slot,
    queue: &Arc<Queue>,
    driver: &Driver,
    message: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let unique = slot.unique();
    let whole = slot.request(message);
    let entry = queue.hold(slot);
    let ticket = Ticket::new(Arc::clone(queue) as Arc<dyn Transport>, unique, entry);
    match proto::parse(message) {
        Some((header, body)) if whole => {
            driver.serve(ticket, &header, body, out);
        }
        // The slot is dropped without a reply, so the request fails.
        _ => debug!("an incomplete request"),
    }
}

/// Number of CPUs in a list of ranges of the system, such as `0-3,8`.
fn cpus(list: &str) -> Option<u16> {
    let mut count: u16 = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        for (list, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11\n", 7)] {
            assert_eq!(cpus(list), Some(count), "{list}");
        }
        for list in ["", "\n", "a", "3-1", "0-99999", "0-65535"] {
            assert_eq!(cpus(list), None, "{list}");
        }
    }
}
