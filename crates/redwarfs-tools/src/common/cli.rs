//! Command lines with `clap`, with errors of one line.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::error::{EXIT_OK, ToolError, one_line};
use super::log::Logger;
use super::log_level::LogLevel;
use super::man;
use super::tool::Tool;
use super::version::VERSION;

const LOGO: &str = r"
  ___        _                 ___ ___
 | _ \___ __| |_ __ ____ _ _ _| __/ __|
 |   / -_) _` \ V  V / _` | '_| _|\__ \
 |_|_\___\__,_|\_/\_/\__,_|_| |_| |___/   DwarFS, re-forged in Rust";

/// The head of every help text: logo, version, platform, libraries.
#[must_use]
pub fn banner(tool: &str) -> String {
    let mut text = String::from(LOGO.trim_start_matches('\n'));
    text.push_str(&format!("\n\n{tool} (RedwarFS {VERSION})\n"));
    text.push_str(&format!(
        "built for {} on {}\n",
        std::env::consts::ARCH,
        std::env::consts::OS
    ));
    let libraries = redwarfs_codec::library_versions();
    if !libraries.is_empty() {
        text.push('\n');
        text.push_str(&wrap_list("using: ", &libraries, 80));
        text.push('\n');
    }
    let missing = missing();
    if !missing.is_empty() {
        text.push_str(&wrap_list("built without: ", &missing, 80));
        text.push('\n');
    }
    text
}

/// What this program was built without, of all that cargo features choose.
fn missing() -> Vec<String> {
    let codecs = redwarfs_codec::missing_codec_names().into_iter();
    let parts = [
        (cfg!(feature = "lua"), "lua"),
        (cfg!(feature = "libarchive"), "libarchive"),
        (cfg!(feature = "remote"), "remote"),
    ];
    let parts = parts.into_iter().filter(|(built, _)| !built);
    codecs
        .chain(parts.map(|(_, name)| name))
        .map(str::to_owned)
        .collect()
}

/// The text of `--version` after the name of the tool.
#[must_use]
pub fn version() -> String {
    let missing = missing();
    if missing.is_empty() {
        format!("{VERSION} (RedwarFS)")
    } else {
        format!("{VERSION} (RedwarFS, without {})", missing.join(", "))
    }
}

fn wrap_list(head: &str, items: &[String], width: usize) -> String {
    let indent = head.len();
    let mut out = head.to_owned();
    let mut column = indent;
    for (i, item) in items.iter().enumerate() {
        let last = i + 1 == items.len();
        let length = item.chars().count() + usize::from(!last);
        if column > indent && column + 1 + length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(item);
        if !last {
            out.push(',');
        }
        column += length;
    }
    out
}

/// The option that shows the manual.
const MAN: &str = "man";

/// Adds the parts that all tools share to `command`: banner, version, manual, option prefixes, layout.
#[must_use]
pub fn prepare(command: Command) -> Command {
    let tool = command.get_name().to_owned();
    command
        .version(version())
        .before_help(StyledStr::from(banner(&tool)))
        .infer_long_args(true)
        .max_term_width(100)
        // The short help shows the options that most users need. The rest has headings.
        .mut_args(|arg| {
            let special = arg.get_help_heading().is_some();
            arg.hide_short_help(special)
        })
        .arg(
            Arg::new(MAN)
                .long(MAN)
                .action(ArgAction::SetTrue)
                .display_order(900)
                .help("Show the manual"),
        )
}

/// The logging options of all tools. Flatten it into the arguments of a tool.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// Show messages down to this level: error, warn, info, verbose, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = whole(str::parse::<LogLevel>))]
    pub log_level: LogLevel,

    /// Show the source file and line of each message
    #[arg(long)]
    pub log_with_context: bool,
}

impl LogArgs {
    /// The logger that the options ask for. It also gets the events of the libraries.
    #[must_use]
    pub fn logger(&self) -> Logger {
        self.logger_at_least(LogLevel::Error)
    }

    /// As [`LogArgs::logger`], but messages as important as `least` are always shown.
    #[must_use]
    pub fn logger_at_least(&self, least: LogLevel) -> Logger {
        let logger = Logger::stderr(self.log_level.max(least), self.log_with_context);
        super::log::install_tracing(&logger);
        logger
    }
}

/// A parser error whose text is the complete message, instead of the end of
/// `failed to parse value 'V' for option '--O': ...`.
#[derive(Debug, Clone)]
pub struct WholeMessage(pub String);

impl fmt::Display for WholeMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WholeMessage {}

/// Turns a parser into one whose error text is the complete message.
pub fn whole<T>(
    parse: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<T, WholeMessage> + Clone {
    move |text| parse(text).map_err(WholeMessage)
}

/// Parses `args` (the first one is the program's name).
///
/// `Err` holds an exit code: help, manual or version have been printed to standard output (0), or
/// an error of one line to standard error (1).
///
/// # Errors
/// See above.
pub fn parse(tool: &Tool, args: &[OsString]) -> Result<ArgMatches, u8> {
    parse_advised(tool, args, |_| None)
}

/// As [`parse`]; `advice` suggests a correction for an argument that belongs to no option.
///
/// # Errors
/// See [`parse`].
pub fn parse_advised(
    tool: &Tool,
    args: &[OsString],
    advice: impl Fn(&str) -> Option<String>,
) -> Result<ArgMatches, u8> {
    // Like --help, the option works without mandatory options, and all others are ignored.
    let mut options = args.iter().skip(1).take_while(|arg| *arg != "--");
    if options.any(|arg| arg.to_str() == Some("--man")) {
        man::show(&tool.manual());
        return Err(EXIT_OK);
    }
    match tool.command.clone().try_get_matches_from(args) {
        Ok(matches) if matches!(matches.try_get_one(MAN), Ok(Some(true))) => {
            man::show(&tool.manual());
            Err(EXIT_OK)
        }
        Ok(matches) => Ok(matches),
        Err(error) => Err(match error.kind() {
            ErrorKind::DisplayHelp => {
                let text = error.render();
                man::print_long(&text.to_string(), &text.ansi().to_string());
                EXIT_OK
            }
            ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                // A closed pipe (`| head`) is no reason to complain.
                let _ = error.print();
                let _ = std::io::stdout().flush();
                EXIT_OK
            }
            kind => {
                let stray = match kind {
                    ErrorKind::UnknownArgument => text_of(&error, ContextKind::InvalidArg),
                    _ => None,
                };
                let stray = stray.filter(|stray| !stray.starts_with('-'));
                let described = describe(&tool.command, &error);
                match stray.and_then(|stray| advice(&stray)) {
                    Some(advice) => described.hint(advice).report(tool.name()),
                    None => described.report(tool.name()),
                }
            }
        }),
    }
}

/// As [`parse`], into a derived structure.
///
/// # Errors
/// The exit code, after printing.
pub fn parse_into<T: clap::FromArgMatches>(tool: &Tool, args: &[OsString]) -> Result<T, u8> {
    let matches = parse(tool, args)?;
    T::from_arg_matches(&matches)
        .map_err(|error| describe(&tool.command, &error).report(tool.name()))
}

/// The name of the option in a `clap` context string such as `--input <DIR>`, without the value.
fn bare_option(text: &str) -> &str {
    let text = text.split([' ', '=', '[']).next().unwrap_or(text);
    text.trim_end_matches("...")
}

fn text_of(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(one_line(text)),
        ContextValue::Strings(texts) => texts.first().map(|text| one_line(text)),
        _ => None,
    }
}

/// Describes the error of a command line in one line.
#[must_use]
pub fn describe(command: &Command, error: &clap::Error) -> ToolError {
    let argument = text_of(error, ContextKind::InvalidArg).unwrap_or_default();
    let option = bare_option(&argument);
    let value = text_of(error, ContextKind::InvalidValue).unwrap_or_default();
    let hint = format!("try '{} --help'", command.get_name());
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if !argument.starts_with('-') || argument == "-" {
                return ToolError::new(format!("unrecognized argument '{argument}'")).hint(hint);
            }
            let matching = long_options_starting_with(command, option);
            if matching.len() > 1 {
                let list = matching
                    .iter()
                    .map(|m| format!("'--{m}'"))
                    .collect::<Vec<_>>()
                    .join(", ");
                return ToolError::new(format!(
                    "option '{option}' is ambiguous and matches {list}"
                ));
            }
            let message = ToolError::new(format!("unrecognised option '{option}'"));
            match text_of(error, ContextKind::SuggestedArg) {
                Some(similar) => message.hint(format!("did you mean '{}'?", bare_option(&similar))),
                None => message.hint(hint),
            }
        }
        ErrorKind::ArgumentConflict => match text_of(error, ContextKind::PriorArg) {
            Some(prior) if bare_option(&prior) != option => ToolError::new(format!(
                "cannot combine {option} and {}",
                bare_option(&prior)
            )),
            _ => ToolError::new(format!(
                "option '{option}' cannot be specified more than once"
            )),
        },
        ErrorKind::ValueValidation => {
            use std::error::Error as _;
            match error.source() {
                Some(cause) if cause.is::<WholeMessage>() => ToolError::new(cause.to_string()),
                Some(cause) => ToolError::new(format!(
                    "failed to parse value '{value}' for option '{option}'"
                ))
                .cause(cause),
                None => ToolError::new(format!(
                    "the argument ('{value}') for option '{option}' is invalid"
                )),
            }
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            ToolError::new(format!("the argument for option '{option}' is missing"))
        }
        ErrorKind::InvalidValue => {
            let message = ToolError::new(format!(
                "the argument ('{value}') for option '{option}' is invalid"
            ));
            match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(valid)) => {
                    message.hint(format!("one of {}", valid.join(", ")))
                }
                _ => message,
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(all)) => all
                    .iter()
                    .map(|a| bare_option(a))
                    .collect::<Vec<_>>()
                    .join(", "),
                _ => option.to_owned(),
            };
            ToolError::new(format!("missing {missing}")).hint(hint)
        }
        ErrorKind::TooManyValues => {
            ToolError::new(format!("option '{option}' takes no value '{value}'"))
        }
        ErrorKind::InvalidUtf8 => ToolError::new("an argument is not valid UTF-8"),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            ToolError::new(first.trim_start_matches("error: ")).hint(hint)
        }
    }
}

fn long_options_starting_with<'a>(command: &'a Command, option: &str) -> Vec<&'a str> {
    match option.strip_prefix("--") {
        Some(prefix) if !prefix.is_empty() => command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .filter(|long| long.starts_with(prefix))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction};

    fn command() -> Command {
        prepare(Command::new("tool"))
            .arg(Arg::new("input").short('i').long("input"))
            .arg(
                Arg::new("number")
                    .long("number")
                    .value_parser(clap::value_parser!(u8).range(0..=9)),
            )
            .arg(
                Arg::new("compress")
                    .long("compress")
                    .action(ArgAction::SetTrue),
            )
            .arg(
                Arg::new("compile")
                    .long("compile")
                    .action(ArgAction::SetTrue)
                    .conflicts_with("compress"),
            )
            .arg(
                Arg::new("level")
                    .long("level")
                    .value_parser(whole(str::parse::<LogLevel>)),
            )
    }

    fn message(args: &[&str]) -> String {
        let args = ["tool"].iter().chain(args).map(OsString::from);
        let error = command()
            .try_get_matches_from(args)
            .expect_err("the arguments are wrong");
        describe(&command(), &error).line("tool")
    }

    #[test]
    fn errors_are_one_line() {
        let cases: [(&[&str], &str); 10] = [
            (&["--foo"], "tool: unrecognised option '--foo'"),
            (&["-x"], "tool: unrecognised option '-x'"),
            (&["foo"], "tool: unrecognized argument 'foo'"),
            (
                &["--comp"],
                "tool: option '--comp' is ambiguous and matches '--compress', '--compile'",
            ),
            (
                &["-ia", "-ib"],
                "tool: option '--input' cannot be specified more than once",
            ),
            (
                &["--number=x"],
                "tool: failed to parse value 'x' for option '--number': invalid digit found in string",
            ),
            (
                &["--input"],
                "tool: the argument for option '--input' is missing",
            ),
            (
                &["--compress", "--compile"],
                "tool: cannot combine --compress and --compile",
            ),
            (
                &["--level=foo"],
                "tool: invalid logger level: foo (one of error, warn, info, verbose, debug, trace)",
            ),
            (
                &["--compile=1"],
                "tool: option '--compile' takes no value '1'",
            ),
        ];
        for (args, want) in cases {
            assert_eq!(message(args), want, "{args:?}");
        }
    }

    #[test]
    fn prefixes_are_accepted() {
        let matches = command()
            .try_get_matches_from(["tool", "--inp", "x"])
            .expect("valid prefix");
        assert_eq!(
            matches.get_one::<String>("input").map(String::as_str),
            Some("x")
        );
    }

    #[test]
    fn lists_are_wrapped() {
        let items = ["aaaa", "bbbb", "cccc"].map(str::to_owned);
        assert_eq!(
            wrap_list("using: ", &items, 18),
            "using: aaaa, bbbb,\n       cccc"
        );
    }
}
