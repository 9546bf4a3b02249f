//! What libarchive is to be prepared for.

use super::sys::Setup;

/// The task for which the library is prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// A format by its name.
    Format {
        name: String,
        filters: Vec<String>,
        options: String,
    },
    /// Format and filters by the name of a file.
    FileName {
        name: Vec<u8>,
        filters: Vec<String>,
        options: String,
    },
    /// Bytes that pass through filters.
    Filters {
        filters: Vec<String>,
        options: String,
    },
}

impl Plan {
    pub(crate) fn filters(&self) -> &[String] {
        match self {
            Self::Format { filters, .. }
            | Self::FileName { filters, .. }
            | Self::Filters { filters, .. } => filters,
        }
    }

    pub(crate) fn options(&self) -> &str {
        match self {
            Self::Format { options, .. }
            | Self::FileName { options, .. }
            | Self::Filters { options, .. } => options,
        }
    }

    /// Prepares the library; the second result is a list of warnings.
    ///
    /// # Errors
    /// The library does not know a name; the error has its text.
    pub(crate) fn setup(&self) -> Result<(Setup, Vec<String>), String> {
        let mut warnings = Vec::new();
        let mut setup = Setup::new()?;
        match self {
            Self::Filters { .. } => setup.raw()?,
            Self::Format { name, .. } => setup.format(name)?,
            Self::FileName { name, .. } => setup.by_file_name(name).map_err(|e| {
                // Some versions put down a code of the system instead.
                let text = format!("No such format '{}'", crate::display_path(name));
                if e.starts_with("No such") { e } else { text }
            })?,
        }
        for filter in self.filters() {
            warnings.extend(setup.filter(filter)?);
        }
        if !self.options().is_empty() {
            warnings.extend(setup.options(self.options())?);
        }
        Ok((setup, warnings))
    }
}
