//! Several images side by side: the root of the mount is a directory with one directory for each of them.
//!
//! An image is opened when somebody looks at its directory, and closed when nobody has used it for some time
//! ([`crate::slots`]). If it cannot be opened, an empty directory is in its place. Extended attributes of this directory
//! say why. The kernel must not keep anything of it, so that the image appears as soon as it can be opened.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redwarfs_format::metadata::Timestamp;
use redwarfs_reader::CacheGroup;
use redwarfs_reader::perfmon::PerfMonitor;
use rustix::io::Errno;

use crate::device::Device;
use crate::error::Error;
use crate::mount_state::MountState;
use crate::newest::withdraw;
use crate::ops::listing::DOTS;
use crate::proto::{Attr, Validity};
use crate::slots::{Opener, ROOT, SlotNo, SlotStatus, Slots};
use crate::synthetic::{AddEntry, DIRECTORY_MODE, Listed, Synthetic};
use crate::xattr::{self, Value};

/// Longest name of a directory.
const LONGEST_NAME: usize = 255;
/// How long the kernel keeps names in the root, and the place of an image that cannot be opened, in seconds. It is short
/// because the kernel cannot be told to forget a name while somebody looks up a name in the same directory: with a slow image, that
/// would stop all others.
pub(crate) const NAMES_VALID: Validity = 1;

/// An image of a mount of several ones.
#[derive(Clone)]
pub struct NamedImage {
    /// Its directory in the root of the mount.
    pub name: OsString,
    /// What it is, for messages and for the attribute `user.dwarfs.source`. Nothing secret.
    pub source: String,
    /// Opens it, in the cache group of the mount.
    pub open: Opener,
}

impl fmt::Debug for NamedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedImage")
            .field("name", &self.name)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The images of a mount of several ones, and what they share.
#[derive(Debug)]
pub struct ImageSet {
    /// In the order in which listings show them. If two have the same name, the later one has a number behind it.
    pub images: Vec<NamedImage>,
    /// The block cache of all.
    pub cache: CacheGroup,
    /// What measures all.
    pub perfmon: PerfMonitor,
}

/// An image of a mount, as [`Images::list`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedImage {
    /// Its directory in the root of the mount.
    pub name: OsString,
    /// What it is.
    pub source: String,
    /// The number of its slot.
    pub slot: u32,
    /// Whether it is open.
    pub status: SlotStatus,
    /// Bytes of all its files; 0 until it was opened for the first time.
    pub bytes: u64,
    /// Number of its inodes; 0 until it was opened for the first time.
    pub inodes: u64,
}

/// Why the images of a mount cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// No directory can have this name.
    #[error("no directory can have the name '{}'", .0.display())]
    Name(OsString),
    /// There is an image of this name.
    #[error("there is an image '{}' already", .0.display())]
    Exists(OsString),
    /// There is no image of this name.
    #[error("there is no image '{}'", .0.display())]
    Missing(OsString),
    /// The mount has had as many images as it can have.
    #[error("the mount has had too many images")]
    TooMany,
    /// The mount does not show images side by side.
    #[error("the mount does not show images side by side")]
    Single,
}

/// The names in the root, and their slots.
#[derive(Debug, Default)]
struct Names {
    by_name: BTreeMap<Vec<u8>, SlotNo>,
    /// In this order, listings show them: so positions stay good when the names change.
    by_slot: BTreeMap<SlotNo, Vec<u8>>,
    /// The last change.
    time: Timestamp,
}

impl Names {
    fn insert(&mut self, name: Vec<u8>, slot: SlotNo) {
        self.by_slot.insert(slot, name.clone());
        self.by_name.insert(name, slot);
        self.time = now();
    }

    fn remove(&mut self, name: &[u8]) -> Option<SlotNo> {
        let slot = self.by_name.remove(name)?;
        self.by_slot.remove(&slot);
        self.time = now();
        Some(slot)
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Timestamp {
        sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nsec: since.subsec_nanos(),
    }
}

/// Whether a directory can have this name.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= LONGEST_NAME
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// The name with a number, if it is taken. None if no directory can have it.
fn free_name(name: &OsStr, taken: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let name = name.as_bytes();
    let numbered = (2..).map(|n: u32| [name, format!("-{n}").as_bytes()].concat());
    let mut candidates = std::iter::once(name.to_vec()).chain(numbered);
    candidates
        .find(|name| !taken(name))
        .filter(|name| is_name(name))
}

/// The root of a mount of several images.
#[derive(Debug)]
pub(crate) struct ImageDirectory(Mutex<Names>);

impl ImageDirectory {
    /// Gives each image a slot.
    ///
    /// # Errors
    /// No directory can have the name of an image, or there are too many.
    pub(crate) fn new(images: Vec<NamedImage>, slots: &Slots) -> Result<Self, Error> {
        let mut names = Names::default();
        for image in images {
            let taken = |name: &[u8]| names.by_name.contains_key(name);
            let failed = |cause: ChangeError| Error::Name(format!("{}: {cause}", image.source));
            let name = free_name(&image.name, taken)
                .ok_or_else(|| failed(ChangeError::Name(image.name.clone())))?;
            let slot = slots
                .add_image(&image.source, Arc::clone(&image.open))
                .ok_or_else(|| failed(ChangeError::TooMany))?;
            names.insert(name, slot);
        }
        names.time = now();
        Ok(Self(Mutex::new(names)))
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a name. If another image has taken the place of its image, that has a new one.
    pub(crate) fn slot(&self, name: &[u8], slots: &Slots) -> Option<SlotNo> {
        let mut names = self.names();
        let slot = *names.by_name.get(name)?;
        let Some(new) = slots.renew(slot) else {
            return Some(slot);
        };
        names.remove(name);
        names.insert(name.to_vec(), new);
        Some(new)
    }

    pub(crate) fn root_attr(&self, mount: &MountState) -> Attr {
        mount.directory_attr(ROOT, ROOT, self.names().time)
    }
}

impl Synthetic for ImageDirectory {
    fn attr(&self, mount: &MountState) -> Result<Attr, Errno> {
        Ok(self.root_attr(mount))
    }

    fn parent(&self, mount: &MountState) -> Result<Attr, Errno> {
        self.attr(mount)
    }

    /// Without attributes: the kernel asks for those that it needs, so that a listing opens nothing.
    fn list(
        &self,
        mount: &MountState,
        position: u64,
        _plus: bool,
        add: AddEntry<'_>,
    ) -> Result<(), Errno> {
        let names = self.names();
        let after = SlotNo(u32::try_from(position - DOTS).unwrap_or(u32::MAX));
        let rest = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        for (slot, name) in names.by_slot.range(rest) {
            let entry = Listed {
                number: mount.slots.ranges().root(*slot),
                mode: DIRECTORY_MODE,
                next: u64::from(slot.0) + DOTS,
                name,
                attr: None,
            };
            if add(&entry) {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, mount: &MountState, name: &[u8]) -> Option<Value> {
        if name == xattr::CONTROL {
            let control = mount.slots.options().control.as_ref()?;
            let bytes = control.as_os_str().as_bytes().to_vec();
            return Some(Value::of_bytes(bytes));
        }
        xattr::of_driver(&mount.perfmon, name)
    }

    fn validity(&self, mount: &MountState) -> Validity {
        NAMES_VALID.min(mount.settings.attributes)
    }

    fn xattr_names(&self) -> &'static [u8] {
        xattr::NAMES_OF_ROOT
    }
}

/// An empty directory in the place of an image that cannot be opened.
#[derive(Debug)]
pub(crate) struct FailedImage(SlotNo);

impl FailedImage {
    /// For the image of a slot.
    pub(crate) fn of(slot: SlotNo) -> Self {
        Self(slot)
    }

    /// That of a node id of slot 0 which is not the root.
    pub(crate) fn of_node(node: u64) -> Option<Self> {
        let slot = u32::try_from(node.checked_sub(ROOT)?).ok()?;
        (slot > 0).then_some(Self(SlotNo(slot)))
    }

    /// Its entry in the root. The kernel asks again soon.
    pub(crate) fn put_entry(&self, mount: &MountState, out: &mut Vec<u8>) {
        let attr = self.attr_in(mount);
        attr.put_entry(NAMES_VALID.min(mount.settings.names), NAMES_VALID, out);
    }

    fn attr_in(&self, mount: &MountState) -> Attr {
        let number = mount.slots.ranges().root(self.0);
        mount.directory_attr(self.node(), number, Timestamp::default())
    }

    /// Not one of the image, so that the kernel keeps nothing when the image is there again.
    fn node(&self) -> u64 {
        u64::from(self.0.0) + ROOT
    }
}

impl Synthetic for FailedImage {
    fn attr(&self, mount: &MountState) -> Result<Attr, Errno> {
        let known = mount.slots.status(self.0);
        known.ok_or(Errno::NOENT)?;
        Ok(self.attr_in(mount))
    }

    fn parent(&self, mount: &MountState) -> Result<Attr, Errno> {
        mount.root_attr()
    }

    fn list(
        &self,
        _mount: &MountState,
        _position: u64,
        _plus: bool,
        _add: AddEntry<'_>,
    ) -> Result<(), Errno> {
        Ok(())
    }

    fn validity(&self, _mount: &MountState) -> Validity {
        NAMES_VALID
    }

    fn xattr(&self, mount: &MountState, name: &[u8]) -> Option<Value> {
        let (source, status, _) = mount.slots.status(self.0)?;
        match name {
            xattr::SLOT => Some(Value::fixed(self.0.0.to_string())),
            xattr::SOURCE => Some(Value::fixed(source.to_string())),
            xattr::ERROR => match status {
                SlotStatus::Failed(cause) => Some(Value::fixed(cause)),
                SlotStatus::Open | SlotStatus::Closed => None,
            },
            _ => None,
        }
    }

    fn xattr_names(&self) -> &'static [u8] {
        xattr::NAMES_OF_FAILED
    }
}

/// Changes and lists the images of a mount of several ones. Not for threads that serve requests.
#[derive(Debug, Clone)]
pub struct Images {
    state: Arc<MountState>,
    /// Ends with the connection.
    device: Weak<Device>,
}

impl Images {
    /// After this time, all programs see a change.
    pub const SEEN_AFTER: Duration = Duration::from_millis(NAMES_VALID * 1000 + 50);

    pub(crate) fn new(state: &Arc<MountState>, device: &Arc<Device>) -> Self {
        Self {
            state: Arc::clone(state),
            device: Arc::downgrade(device),
        }
    }

    fn directory(&self) -> Result<&ImageDirectory, ChangeError> {
        self.state.images().ok_or(ChangeError::Single)
    }

    /// Lets the kernel forget the listing of the root, and its attributes. Names that it knows stay for
    /// [`Self::SEEN_AFTER`].
    fn changed(&self) {
        withdraw(&self.device, ROOT, std::iter::empty());
    }

    /// Adds an image. It is opened when somebody needs it. Programs see it after [`Self::SEEN_AFTER`] at the latest.
    ///
    /// # Errors
    /// [`ChangeError`] says why it cannot be added.
    pub fn add(&self, image: NamedImage) -> Result<(), ChangeError> {
        let directory = self.directory()?;
        let name = image.name.as_bytes().to_vec();
        if !is_name(&name) {
            return Err(ChangeError::Name(image.name));
        }
        {
            let mut names = directory.names();
            if names.by_name.contains_key(&name) {
                return Err(ChangeError::Exists(image.name));
            }
            let slot = self.state.slots.add_image(&image.source, image.open);
            names.insert(name, slot.ok_or(ChangeError::TooMany)?);
        }
        self.changed();
        Ok(())
    }

    /// Takes an image out of the mount. Programs that have something of it open keep it until it is closed, because
    /// nobody uses it or others need its place. Its name is gone after [`Self::SEEN_AFTER`] at the latest.
    ///
    /// # Errors
    /// [`ChangeError::Missing`] if there is no such image.
    pub fn remove(&self, name: &OsStr) -> Result<(), ChangeError> {
        let directory = self.directory()?;
        let removed = directory.names().remove(name.as_bytes());
        let slot = removed.ok_or_else(|| ChangeError::Missing(name.to_owned()))?;
        self.state.slots.remove(slot);
        self.changed();
        Ok(())
    }

    /// The images, in the order of their names.
    pub fn list(&self) -> Vec<ListedImage> {
        let Some(directory) = self.state.images() else {
            return Vec::new();
        };
        let names = directory.names();
        let listed = names.by_name.iter().filter_map(|(name, &slot)| {
            let (source, status, totals) = self.state.slots.status(slot)?;
            Some(ListedImage {
                name: OsString::from_vec(name.clone()),
                source: source.to_string(),
                slot: slot.0,
                status,
                bytes: totals.bytes,
                inodes: totals.inodes,
            })
        });
        listed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_if_they_are_taken() {
        let taken = ["a", "a-2", "b"];
        let free = |name: &str| {
            let found = free_name(OsStr::new(name), |name| {
                taken.iter().any(|taken| taken.as_bytes() == name)
            });
            found.map(|name| String::from_utf8(name).unwrap())
        };
        assert_eq!(free("a").as_deref(), Some("a-3"));
        assert_eq!(free("b").as_deref(), Some("b-2"));
        assert_eq!(free("c").as_deref(), Some("c"));
        for name in ["", ".", "..", "a/b", "x\0", &"x".repeat(256)] {
            assert_eq!(free(name), None, "{name}");
        }
    }

    #[test]
    fn the_place_of_a_failed_image_is_not_the_root() {
        for slot in [1, 7, crate::slots::MOST_SLOTS - 1] {
            let failed = FailedImage::of(SlotNo(slot));
            assert_eq!(SlotNo::of(failed.node()), SlotNo(0));
            assert_eq!(FailedImage::of_node(failed.node()).unwrap().0, SlotNo(slot));
        }
        assert!(FailedImage::of_node(ROOT).is_none() && FailedImage::of_node(0).is_none());
    }
}
