//! libarchive, if the system has it.

mod process;
mod sys;

pub(crate) use process::Remote;
pub use process::{ArchiveProcess, serve};
pub(crate) use sys::{Answer, Description, Fatal, PATH_VARIABLE, Setup, Writer, version};

/// The library in the act of writing.
pub(crate) trait Engine {
    /// Begins an entry.
    fn header(&mut self, d: &Description<'_>) -> Result<Answer, Fatal>;

    /// Appends to the contents of the entry.
    fn data(&mut self, bytes: &[u8]) -> Result<(), Fatal>;

    /// Ends the entry.
    fn finish_entry(&mut self) -> Result<Answer, Fatal>;

    /// Completes the archive. Nothing may be written afterwards.
    fn close(&mut self) -> Result<Answer, Fatal>;
}

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

    /// Starts to write: in a separate process if there is one, otherwise in this one.
    pub(crate) fn open<'a>(
        &self,
        process: Option<&ArchiveProcess>,
        out: &'a mut dyn std::io::Write,
    ) -> Result<Box<dyn Engine + 'a>, Fatal> {
        let out = match process {
            None => out,
            Some(process) => match Remote::start(process, self, out) {
                Ok(started) => return Ok(Box::new(started?)),
                Err(out) => out,
            },
        };
        let (setup, _) = self.setup().map_err(Fatal::Library)?;
        Ok(Box::new(setup.open(out)?))
    }
}
