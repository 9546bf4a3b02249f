//! The options of a mount, resolved for its image.

use redwarfs_reader::Image;
use rustix::process::geteuid;

use crate::idle::validity;
use crate::options::{Access, MountOptions};
use crate::policy::Policy;
use crate::proto::Validity;

/// How long the kernel may keep names and attributes: an image does not change.
const FOREVER: Validity = 365 * 24 * 60 * 60;

/// Whether the image has, or may have, access control lists. Damaged tables are no reason to fail here:
/// requests for attributes fail. Tables that the caller ignores may have some.
fn has_lists(image: &Image) -> bool {
    let metadata = image.metadata();
    let ignored = || {
        metadata
            .ignored_tables()
            .map(|names| names.contains(&"xattrs"))
    };
    metadata.has_acls().unwrap_or(true) || ignored().unwrap_or(true)
}

/// The options of a mount, resolved for one of its images.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    pub(crate) keep_cache: bool,
    /// Whether the kernel keeps the data of sparse files, or the image has none.
    pub(crate) cache_sparse: bool,
    /// Only root and this user may ask. The kernel lets everybody in, so it must ask every time.
    pub(crate) only_for: Option<u32>,
    /// How long names and attributes are valid.
    pub(crate) names: Validity,
    pub(crate) attributes: Validity,
    /// Whether the driver must see every opening of a directory.
    pub(crate) ask_opendir: bool,
    /// LISTXATTR tells the names of the extended attributes of the driver.
    pub(crate) list_xattrs: bool,
    /// Requests for extended attributes are answered.
    pub(crate) xattrs: bool,
    /// The image has extended attributes.
    pub(crate) stored_xattrs: bool,
    /// The mount shows several images, of which one may have what another has not.
    pub(crate) several: bool,
    /// The mount has a writable layer.
    pub(crate) layered: bool,
    /// The kernel is to enforce the access control lists of the image.
    pub(crate) lists: bool,
    /// Nobody needs the image after the mount.
    pub(crate) owns_image: bool,
}

impl Settings {
    pub(crate) fn new(image: &Image, options: &MountOptions) -> Self {
        Self::resolved(Some(image), options)
    }

    /// Those of a root that is of no image, in a mount of several ones.
    pub(crate) fn of_several(options: &MountOptions) -> Self {
        Self::resolved(None, options)
    }

    fn resolved(image: Option<&Image>, options: &MountOptions) -> Self {
        let only_for = (options.access == Access::OwnerAndRoot && options.lets_others_in())
            .then(|| geteuid().as_raw());
        let valid = options.idle.map_or(FOREVER, validity);
        let several = options.snapshots.is_some() || options.follow_newest || options.side_by_side;
        let layered = options.layer.is_some();
        // Files of a writable layer may get some.
        let has_lists = several || layered || image.is_some_and(has_lists);
        let lists = has_lists && options.xattrs && options.checks_permissions();
        if has_lists && !options.xattrs {
            tracing::info!("the access control lists of the image, if any, do not count");
        } else if has_lists && !lists {
            tracing::info!("the access control lists of the image are shown, but not enforced");
        }
        let has_holes = |image: &Image| image.metadata().hole_block().is_some();
        let sparse = several || image.is_some_and(has_holes);
        Self {
            policy: Policy::new(options),
            keep_cache: options.keep_cache,
            cache_sparse: options.cache_sparse || !sparse,
            only_for,
            names: if only_for.is_some() { 0 } else { valid },
            attributes: valid,
            ask_opendir: only_for.is_some() || options.idle.is_some(),
            list_xattrs: options.list_xattrs,
            xattrs: options.xattrs,
            stored_xattrs: options.xattrs
                && image.is_some_and(|image| image.metadata().has_xattrs()),
            several,
            layered,
            lists,
            owns_image: options.owns_image,
        }
    }
}
