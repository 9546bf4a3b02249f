//! What a tool gives to the code that all tools share: its command line and its manual.

use clap::Command;
use clap::builder::PossibleValuesParser;

use super::log_level::LogLevel;
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
    /// Long names of options, and words that a shell offers as their values.
    words: Vec<(&'static str, Vec<&'static str>)>,
}

impl Tool {
    /// A tool whose options are all in `command`.
    #[must_use]
    pub fn new(command: Command, text: &'static str) -> Self {
        Self {
            command,
            text,
            more_options: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Adds words that a shell offers as the value of the option with this long name. The option may take others, too.
    #[must_use]
    pub fn offering(
        mut self,
        option: &'static str,
        words: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        self.words.push((option, words.into_iter().collect()));
        self
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

    /// The long names of options with the words that shells offer as their values.
    fn words(&self) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        let common = [
            ("log-level", LogLevel::ALL.map(LogLevel::name).to_vec()),
            ("progress", vec!["none", "simple", "ascii", "unicode"]),
        ];
        let has = |(option, _): &(&str, _)| {
            let mut known = self.command.get_arguments();
            known.any(|arg| arg.get_long() == Some(option))
        };
        common.into_iter().filter(has).chain(self.words.clone())
    }

    /// The command line as shells complete it: options whose values are words have a list of them. It is not for parsing,
    /// because most of these options also take other values.
    #[must_use]
    pub fn completion(&self) -> Command {
        let mut command = self.command.clone();
        for (option, words) in self.words() {
            command = command.mut_args(|arg| match arg.get_long() {
                Some(long) if long == option => arg.value_parser(PossibleValuesParser::new(&words)),
                _ => arg,
            });
        }
        command
    }

    /// The manual.
    #[must_use]
    pub fn manual(&self) -> Manual {
        Manual::new(&self.command, self.text, &self.more_options)
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    #[test]
    fn options_take_the_words_that_shells_offer() {
        let mut offered = Vec::new();
        for tool in crate::tools() {
            for (option, words) in tool.words() {
                offered.push(option);
                // After these, something has to follow.
                for word in words.into_iter().filter(|word| !word.ends_with(['=', ':'])) {
                    let option = format!("--{option}={word}");
                    let parsed = tool
                        .command
                        .clone()
                        .try_get_matches_from([tool.name(), &option]);
                    // Other arguments may be missing.
                    let kind = parsed.err().map(|e| e.kind());
                    let refused = [
                        ErrorKind::InvalidValue,
                        ErrorKind::ValueValidation,
                        ErrorKind::UnknownArgument,
                    ];
                    let taken = kind.is_none_or(|kind| !refused.contains(&kind));
                    assert!(taken, "{} {option}: {kind:?}", tool.name());
                }
            }
            // Building it checks it.
            tool.completion().build();
        }
        for option in ["log-level", "progress", "format", "checksum", "order"] {
            assert!(offered.contains(&option), "{option}");
        }
    }
}
