//! What a tool gives to the code that all tools share: its command line and its manual.

use clap::Command;

use super::man::{Manual, Section};

/// A tool. Help, manual and completions follow from it.
#[derive(Debug, Clone)]
pub struct Tool {
    /// The command line.
    pub command: Command,
    /// The text of the manual without the options, in the language of [`parse`](super::man::parse).
    text: &'static str,
    /// Chapters about options that `command` does not describe.
    more_options: Vec<Section>,
}

impl Tool {
    /// A tool whose options are all in `command`.
    #[must_use]
    pub fn new(command: Command, text: &'static str) -> Self {
        Self {
            command,
            text,
            more_options: Vec::new(),
        }
    }

    /// Adds chapters about options that are not in the command line.
    #[must_use]
    pub fn with_options(mut self, sections: Vec<Section>) -> Self {
        self.more_options.extend(sections);
        self
    }

    /// The name of the program.
    #[must_use]
    pub fn name(&self) -> &str {
        self.command.get_name()
    }

    /// The manual.
    #[must_use]
    pub fn manual(&self) -> Manual {
        Manual::new(&self.command, self.text, &self.more_options)
    }
}
