//! The requested archive format, and its writer.

use std::fmt;
use std::io::Write;
use std::path::Path;

use super::cpio::{Cpio, CpioFormat};
use super::entry::Sink;
use super::filter::OwnFilter;
use super::library::{FilterWriter, LibrarySink};
use super::tar::{Tar, TarFormat};
use super::zip::Zip;
use crate::error::{Error, Result};
use crate::libarchive::{ArchiveProcess, Plan, Setup};

/// An archive format with filters and options.
///
/// `pax`, `ustar`, `gnutar`, `newc`, `odc`, `cpio` (which is `odc`) and `zip` are written by this crate,
/// so they need no library, and are the same everywhere. This crate also applies the filter `gzip` or
/// `zstd` to them. libarchive writes all other formats, applies other filters and several filters, and
/// does all of it if there are options. It is loaded when it is needed. Names and options are those of
/// libarchive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSpec {
    format: Format,
    filters: Vec<String>,
    options: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Format {
    Tar(TarFormat),
    Cpio(CpioFormat),
    Zip,
    Library(String),
    /// By the name of a file, like libarchive.
    LibraryByName(Vec<u8>),
}

/// Endings of file names. libarchive handles all other names.
const ENDINGS: &[(&str, &str, &[&str])] = &[
    (".tar", "pax", &[]),
    (".tgz", "pax", &["gzip"]),
    (".tar.gz", "pax", &["gzip"]),
    (".tbz2", "pax", &["bzip2"]),
    (".tbz", "pax", &["bzip2"]),
    (".tar.bz2", "pax", &["bzip2"]),
    (".txz", "pax", &["xz"]),
    (".tar.xz", "pax", &["xz"]),
    (".tzst", "pax", &["zstd"]),
    (".tar.zst", "pax", &["zstd"]),
    (".tar.lz4", "pax", &["lz4"]),
    (".tar.lzma", "pax", &["lzma"]),
    (".tar.lz", "pax", &["lzip"]),
    (".tar.lzo", "pax", &["lzop"]),
    (".tar.Z", "pax", &["compress"]),
    (".cpio", "cpio", &[]),
    (".cpio.gz", "cpio", &["gzip"]),
    (".cpio.zst", "cpio", &["zstd"]),
    (".cpio.xz", "cpio", &["xz"]),
    (".zip", "zip", &[]),
    (".jar", "zip", &[]),
    (".7z", "7zip", &[]),
    (".iso", "iso9660", &[]),
    (".mtree", "mtree", &[]),
    (".shar", "shar", &[]),
    (".xar", "xar", &[]),
    (".warc", "warc", &[]),
];

/// The most used of the available formats.
const FORMATS: [&str; 14] = [
    "pax", "ustar", "gnutar", "cpio", "newc", "odc", "zip", "7zip", "iso9660", "mtree", "shar",
    "xar", "warc", "v7tar",
];

/// The filters of libarchive.
const FILTERS: [&str; 13] = [
    "gzip",
    "bzip2",
    "xz",
    "zstd",
    "lz4",
    "lzma",
    "lzip",
    "lzop",
    "compress",
    "grzip",
    "lrzip",
    "b64encode",
    "uuencode",
];

impl ArchiveSpec {
    /// The most used formats that [`new`](Self::new) knows.
    #[must_use]
    pub fn formats() -> &'static [&'static str] {
        &FORMATS
    }

    /// The filters that [`new`](Self::new) knows, if libarchive was built with all of them.
    #[must_use]
    pub fn filters() -> &'static [&'static str] {
        &FILTERS
    }

    /// Format and filters of archives whose names end in `.` and `ending`, for users who give an
    /// extension as format.
    #[must_use]
    pub fn of_ending(ending: &str) -> Option<(&'static str, &'static [&'static str])> {
        let ending = ending.trim_start_matches('.');
        let known = ENDINGS
            .iter()
            .find(|(known, ..)| known.strip_prefix('.') == Some(ending));
        known.map(|&(_, format, filters)| match format {
            // The same as text, without libarchive.
            "paxr" => ("pax", filters),
            other => (other, filters),
        })
    }

    /// An archive of the format with this name, passed through filters in this order. `options` are
    /// `key=value`, `!key` or `module:key=value`, separated by commas.
    ///
    /// # Errors
    /// [`Error::Spec`] for an unknown name or option, and if libarchive is needed but missing.
    pub fn new(format: &str, filters: &[String], options: &str) -> Result<Self> {
        let format = match format {
            "cpio" | "odc" => Format::Cpio(CpioFormat::Odc),
            "newc" => Format::Cpio(CpioFormat::Newc),
            "zip" => Format::Zip,
            name => match name.parse() {
                Ok(tar) => Format::Tar(tar),
                Err(_) => Format::Library(name.to_owned()),
            },
        };
        Self::checked(format, filters.to_vec(), options)
    }

    /// The archive format of a file name, by its ending.
    ///
    /// # Errors
    /// As [`Self::new`]; `No such format 'NAME'` for an unknown ending.
    pub fn for_file_name(path: &Path, options: &str) -> Result<Self> {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.as_encoded_bytes();
        // The longest matching ending counts, so that `.tar.gz` is not read as `.gz`.
        let known = ENDINGS
            .iter()
            .filter(|(ending, ..)| name.len() > ending.len() && name.ends_with(ending.as_bytes()))
            .max_by_key(|(ending, ..)| ending.len());
        if let Some((_, format, filters)) = known {
            let filters: Vec<String> = filters.iter().map(|&f| f.to_owned()).collect();
            return Self::new(format, &filters, options);
        }
        Self::checked(Format::LibraryByName(name.to_vec()), Vec::new(), options)
    }

    fn checked(format: Format, filters: Vec<String>, options: &str) -> Result<Self> {
        let spec = Self {
            format,
            filters,
            options: options.to_owned(),
        };
        if !spec.is_own() {
            spec.setup(false)?;
        } else if !spec.filters.is_empty() && spec.own_filter().is_none() {
            spec.setup(true)?;
        }
        Ok(spec)
    }

    /// The name of the format.
    #[must_use]
    pub fn format_name(&self) -> String {
        match &self.format {
            Format::Tar(format) => format.name().to_owned(),
            Format::Cpio(CpioFormat::Newc) => "newc".to_owned(),
            Format::Cpio(CpioFormat::Odc) => "odc".to_owned(),
            Format::Zip => "zip".to_owned(),
            Format::Library(name) => name.clone(),
            Format::LibraryByName(name) => crate::display_path(name),
        }
    }

    /// Whether this crate writes the format; the filters may be libarchive's all the same.
    #[must_use]
    pub fn is_own(&self) -> bool {
        let own = matches!(self.format, Format::Tar(_) | Format::Cpio(_) | Format::Zip);
        own && self.options.is_empty()
    }

    /// The filter, if it is the only one and of this crate.
    fn own_filter(&self) -> Option<OwnFilter> {
        match &self.filters[..] {
            [name] if self.is_own() => OwnFilter::named(name),
            _ => None,
        }
    }

    /// What libarchive is to be prepared for: all of it or the filters alone.
    fn plan(&self, filters_only: bool) -> Plan {
        let (filters, options) = (self.filters.clone(), self.options.clone());
        match &self.format {
            _ if filters_only => Plan::Filters { filters, options },
            Format::LibraryByName(name) => Plan::FileName {
                name: name.clone(),
                filters,
                options,
            },
            _ => Plan::Format {
                name: self.format_name(),
                filters,
                options,
            },
        }
    }

    /// Prepares libarchive, for all of it or for the filters alone.
    fn setup(&self, filters_only: bool) -> Result<(Setup, Vec<String>)> {
        if let Err(e) = crate::libarchive::version() {
            return Err(self.missing(&e));
        }
        self.plan(filters_only).setup().map_err(Error::Spec)
    }

    fn missing(&self, cause: &str) -> Error {
        let what = if !self.filters.is_empty() {
            format!("filter '{}'", self.filters.join(","))
        } else if !self.options.is_empty() {
            format!("option '{}'", self.options)
        } else {
            format!("format '{}'", self.format_name())
        };
        Error::Spec(format!(
            "{what} needs libarchive, {cause}; \
             without it there are pax, ustar, gnutar, newc, odc, cpio and zip, \
             and the filters gzip and zstd"
        ))
    }

    /// Calls `write` with the sink of this archive. The first result is a list of warnings. libarchive
    /// runs in a separate process if the options have one.
    pub(crate) fn with_sink<T>(
        &self,
        out: &mut dyn Write,
        process: Option<&ArchiveProcess>,
        write: impl FnOnce(&mut dyn Sink, Vec<String>) -> Result<T>,
    ) -> Result<T> {
        if !self.is_own() {
            let (setup, warnings) = self.setup(false)?;
            let format = (setup.format_code(), &self.format_name()[..]);
            let mut sink = LibrarySink::new(&self.plan(false), format, process, out)?;
            return write(&mut sink, warnings);
        }
        if self.filters.is_empty() {
            return self.with_own(out, Vec::new(), write);
        }
        if let Some(filter) = self.own_filter() {
            return filter.with(out, |out| self.with_own(out, Vec::new(), write));
        }
        let (_, warnings) = self.setup(true)?;
        let mut filtered = FilterWriter::new(&self.plan(true), process, out)?;
        let result = self.with_own(&mut filtered, warnings, write)?;
        filtered.finish()?;
        Ok(result)
    }

    fn with_own<T>(
        &self,
        out: &mut dyn Write,
        warnings: Vec<String>,
        write: impl FnOnce(&mut dyn Sink, Vec<String>) -> Result<T>,
    ) -> Result<T> {
        match &self.format {
            Format::Tar(format) => write(&mut Tar::new(out, *format), warnings),
            Format::Cpio(format) => write(&mut Cpio::new(out, *format), warnings),
            Format::Zip => write(&mut Zip::new(out), warnings),
            Format::Library(_) | Format::LibraryByName(_) => {
                Err(Error::Spec("not a format of this program".to_owned()))
            }
        }
    }
}

impl From<TarFormat> for ArchiveSpec {
    fn from(format: TarFormat) -> Self {
        Self {
            format: Format::Tar(format),
            filters: Vec::new(),
            options: String::new(),
        }
    }
}

impl fmt::Display for ArchiveSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format_name())
    }
}
