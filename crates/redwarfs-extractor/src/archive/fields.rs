//! The ranges of the fields of archive formats.
//!
//! One rule holds for all formats: a value that is out of the range of its field is an error, and is
//! never changed. The error names the entry, the field and the format. Missing fields, and times
//! coarser than those of the image, are properties of the format (see the table in
//! `docs/extraction.md`). The caller reports how many times lost their fraction.

use super::entry::{Entry, Kind};

/// A range of times, and their resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// First and last one, in seconds since 1970.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// In nanoseconds.
    pub(crate) unit: u32,
}

/// One second, as a unit.
pub(crate) const SECOND: u32 = 1_000_000_000;

impl Times {
    /// Whole seconds from 1970 to `last`.
    pub(crate) const fn seconds(last: u64) -> Self {
        Self {
            first: 0,
            last: last.cast_signed(),
            unit: SECOND,
        }
    }

    /// All times of images, in a unit of this many nanoseconds.
    pub(crate) const fn all(unit: u32) -> Self {
        Self {
            first: i64::MIN,
            last: i64::MAX,
            unit,
        }
    }
}

/// The fields of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    /// `None`: entries have no times.
    pub(crate) times: Option<Times>,
    /// Whether there are access times.
    pub(crate) atime: bool,
    /// Greatest user and group id; `None`: entries have no owner.
    pub(crate) id: Option<u32>,
    /// Greatest size of a file in bytes.
    pub(crate) size: u64,
    /// Greatest major and minor number of a device; `None`: there are no device numbers.
    pub(crate) device: Option<(u32, u32)>,
    /// Longest target of a symbolic link in bytes.
    pub(crate) target: usize,
    /// Whether paths are characters, so that other bytes would be changed.
    pub(crate) text: bool,
    /// The same for targets of symbolic links.
    pub(crate) text_target: bool,
    /// Whether an entry has a name but no path.
    pub(crate) flat: bool,
    /// Whether there are extended attributes and file flags.
    pub(crate) xattrs: bool,
}

impl Fields {
    /// All attributes of images.
    pub(crate) const ALL: Self = Self {
        times: Some(Times::all(1)),
        atime: true,
        id: Some(u32::MAX),
        size: u64::MAX,
        device: Some((u32::MAX, u32::MAX)),
        target: usize::MAX,
        text: false,
        text_target: false,
        flat: false,
        xattrs: false,
    };

    /// Whether all fields can hold the values of `entry`; times may lose their fraction.
    ///
    /// # Errors
    /// The field that cannot hold its value, and the reason.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), String> {
        for (what, text, bytes) in [
            ("path", self.text, &entry.path),
            ("link target", self.text_target, &entry.symlink),
        ] {
            if text && std::str::from_utf8(bytes).is_err() {
                return Err(format!("{what} is not UTF-8"));
            }
        }
        if self.flat && entry.path.contains(&b'/') {
            return Err("path has directories, which it does not keep".to_owned());
        }
        if entry.symlink.len() > self.target {
            let length = entry.symlink.len();
            return Err(format!("link target of {length} bytes is too long"));
        }
        if let Some(most) = self.id {
            for (what, id) in [("user id", entry.uid), ("group id", entry.gid)] {
                if id > most {
                    return Err(format!("{what} {id} is too large, the greatest is {most}"));
                }
            }
        }
        if entry.size > self.size {
            let (size, most) = (entry.size, self.size);
            return Err(format!("size {size} is too large, the greatest is {most}"));
        }
        if matches!(entry.kind, Kind::CharDevice | Kind::BlockDevice) {
            let (major, minor) = (
                redwarfs_format::device::major(entry.rdev),
                redwarfs_format::device::minor(entry.rdev),
            );
            match self.device {
                None => return Err("it has no field for device numbers".to_owned()),
                Some(most) if major > most.0 || minor > most.1 => {
                    return Err(format!(
                        "device number {major}:{minor} is too large, the greatest is {}:{}",
                        most.0, most.1
                    ));
                }
                Some(_) => {}
            }
        }
        self.check_times(entry)
    }

    fn check_times(&self, entry: &Entry) -> Result<(), String> {
        let Some(times) = self.times else {
            return Ok(());
        };
        let atime = entry.atime.filter(|_| self.atime);
        let named = [
            ("modification time", Some(entry.mtime)),
            ("access time", atime),
        ];
        for (what, time) in named {
            if let Some((sec, _)) = time
                && !(times.first..=times.last).contains(&sec)
            {
                return Err(format!(
                    "{what} {} is out of range, which is {} to {}",
                    utc(sec),
                    utc(times.first),
                    utc(times.last)
                ));
            }
        }
        Ok(())
    }

    /// Whether a time of `entry` has a fraction that is finer than the unit of its field.
    pub(crate) fn rounds(&self, entry: &Entry) -> bool {
        let finer = |(_, nsec): (i64, u32)| {
            self.times
                .is_some_and(|times| !nsec.is_multiple_of(times.unit))
        };
        finer(entry.mtime) || (self.atime && entry.atime.is_some_and(finer))
    }
}

/// A time in the notation of ISO 8601.
fn utc(sec: i64) -> String {
    let (day, second) = (sec.div_euclid(86_400), sec.rem_euclid(86_400));
    // Days from 1 March of year 0 in eras of 400 years, so that leap days come last.
    let day = day + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        for (sec, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (4_354_819_199, "2107-12-31T23:59:59Z"),
            (-2_208_988_800, "1900-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(sec), text);
        }
        // No time is too far away to be shown.
        assert!(utc(i64::MIN).starts_with('-') && utc(i64::MAX).ends_with('Z'));
    }

    #[test]
    fn every_field_has_its_range() {
        let narrow = Fields {
            times: Some(Times::seconds(99)),
            atime: false,
            id: Some(99),
            size: 99,
            device: Some((9, 9)),
            target: 9,
            text: true,
            text_target: true,
            flat: true,
            xattrs: false,
        };
        let fitting = Entry {
            path: b"name".to_vec(),
            uid: 99,
            gid: 99,
            size: 99,
            mtime: (99, 0),
            // Without a field for it.
            atime: Some((-5, 5)),
            ..Entry::sample(Kind::Regular)
        };
        assert_eq!(narrow.check(&fitting), Ok(()));
        assert!(!narrow.rounds(&fitting));
        type Change = fn(&mut Entry);
        let cases: [(Change, &str); 11] = [
            (|e| e.uid = 100, "user id 100"),
            (|e| e.gid = 100, "group id 100"),
            (|e| e.size = 100, "size 100"),
            (
                |e| e.mtime = (-1, 0),
                "modification time 1969-12-31T23:59:59Z",
            ),
            (
                |e| e.mtime = (100, 0),
                "modification time 1970-01-01T00:01:40Z",
            ),
            (|e| e.path = b"a/b".to_vec(), "path has directories"),
            (|e| e.path = b"\xff".to_vec(), "path is not UTF-8"),
            (|e| e.symlink = b"\xff".to_vec(), "link target is not UTF-8"),
            (|e| e.symlink = vec![b'x'; 10], "link target of 10 bytes"),
            (
                |e| (e.kind, e.rdev) = (Kind::CharDevice, redwarfs_format::device::makedev(10, 1)),
                "device number 10:1",
            ),
            (
                |e| (e.kind, e.rdev) = (Kind::BlockDevice, redwarfs_format::device::makedev(1, 10)),
                "device number 1:10",
            ),
        ];
        for (change, start) in cases {
            let mut entry = fitting.clone();
            change(&mut entry);
            let reason = narrow.check(&entry).unwrap_err();
            assert!(reason.starts_with(start), "{reason}");
            assert_eq!(Fields::ALL.check(&entry), Ok(()));
        }
        let none = Fields {
            device: None,
            ..Fields::ALL
        };
        let reason = none.check(&Entry::sample(Kind::CharDevice)).unwrap_err();
        assert!(reason.contains("no field for device numbers"), "{reason}");
        let access = Entry {
            atime: Some((-5, 5)),
            ..fitting
        };
        let with = Fields {
            atime: true,
            ..narrow
        };
        let reason = with.check(&access).unwrap_err();
        assert!(reason.starts_with("access time 1969"), "{reason}");
        assert!(with.rounds(&access) && !Fields::ALL.rounds(&access));
    }
}
