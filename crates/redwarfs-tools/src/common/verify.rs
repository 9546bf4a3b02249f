//! Images that must be what somebody signed: `verify=` of the tools that read them.

use redwarfs_reader::{Image, Verification};
use redwarfs_signature::{Error, PublicKeys};

use super::Logger;
use super::error::io_cause;
use super::time::LocalTime;

/// Understands `signed:KEY`, `digests` and `checksums`.
///
/// # Errors
/// Text for the user.
pub fn verification(text: &str) -> Result<Verification, String> {
    redwarfs_signature::verification(text)
        .map_err(|error| explained(text.strip_prefix("signed:").unwrap_or(text), &error))
}

fn explained(key: &str, error: &Error) -> String {
    match error {
        Error::Choice(_) => error.to_string(),
        Error::Io(e) => format!("cannot use the public key: {key}: {}", io_cause(e)),
        other => format!("cannot use the public key: {key}: {other}"),
    }
}

/// The keys that a user names.
///
/// # Errors
/// Text for the user.
pub fn public_keys(argument: &str) -> Result<PublicKeys, String> {
    PublicKeys::from_argument(argument).map_err(|error| explained(argument, &error))
}

/// Says what an image has proved, and of when that is.
pub fn log_verified(image: &Image, logger: &Logger) {
    let Some(verified) = image.verified() else {
        return;
    };
    let time = utc(verified.time);
    // Unlike the name of a snapshot, it is in the metadata, which was verified.
    let made = image.metadata().create_timestamp();
    let made = made.map_or_else(String::new, |made| {
        let made = utc(i64::try_from(made).unwrap_or(i64::MAX));
        format!("; the tree is of {made}")
    });
    match &verified.signer {
        Some(signer) => logger.info(format_args!("signed by {signer}, digests of {time}{made}")),
        None => logger.info(format_args!(
            "the image has digests of {time}, nobody vouches for them{made}"
        )),
    }
}

/// A time as `YYYY-MM-DD HH:MM:SS UTC`.
#[must_use]
pub fn utc(seconds: i64) -> String {
    // Nobody needs years beyond these, which no image can have.
    const DECENT: i64 = 100_000_000_000;
    let seconds = seconds.clamp(-DECENT, DECENT);
    format!("{} UTC", LocalTime::utc_from_unix(seconds).date_time())
}
