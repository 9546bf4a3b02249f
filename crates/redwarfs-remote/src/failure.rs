//! Errors of requests: what to do about them, and what to say.

use std::error::Error as _;
use std::io;
use std::ops::Range;
use std::time::Duration;

use http::StatusCode;
use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

use crate::observer::Record;
use crate::resolver::Unresolved;

/// Why a request did not give what it was for.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: io::ErrorKind,
    /// Without secrets.
    pub(crate) what: String,
    pub(crate) next: Next,
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing helps.
    GiveUp,
    /// Try again, not before the server wants it.
    Again(Option<Duration>),
    /// The name of the server has no address. Only the server of an object that was opened is asked again.
    Unresolved,
    /// No server gives credentials. Whoever opens an object does not wait long for one, because few machines have one.
    Credentials,
    /// The server sends whole objects only. It states this length.
    Whole(Option<u64>),
}

impl Failure {
    pub(crate) fn last(kind: io::ErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            next: Next::GiveUp,
        }
    }

    pub(crate) fn passing(kind: io::ErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            next: Next::Again(None),
        }
    }

    /// The error of an object that is not what it was.
    pub(crate) fn changed() -> Self {
        Self::last(
            io::ErrorKind::InvalidData,
            "the image has changed while it was in use",
        )
    }

    /// The user wants to stop. No kind with which readers and writers try again.
    pub(crate) fn interrupted() -> Self {
        Self::last(io::ErrorKind::Other, "interrupted")
    }

    /// Judges the error of a request, with what the server answered to it.
    pub(crate) fn of(error: &Error, record: &Record) -> Self {
        let answer = record.answer();
        if let Some(status) = answer.status.filter(|status| !status.is_success()) {
            return Self::status(status, answer.retry_after, answer.code.as_deref());
        }
        if answer.encoded && !answer.aside {
            return Self::last(
                io::ErrorKind::InvalidData,
                "the server sends compressed bytes instead of those of the object",
            );
        }
        if let Some(unresolved) = unresolved(error) {
            return Self {
                kind: io::ErrorKind::NotConnected,
                what: without_secrets(&unresolved.to_string()),
                next: Next::Unresolved,
            };
        }
        match transport(error) {
            Some((_, what)) if refuses_tls(error) => Self::last(io::ErrorKind::NotConnected, what),
            Some((kind, what)) => Self::transport(kind, what),
            None if answer.code.is_some() => Self::last(io::ErrorKind::Other, {
                let code = answer.code.unwrap_or_default();
                format!("the server answers with an error ({code})")
            }),
            None if answer.status == Some(StatusCode::OK) && !answer.aside => Self {
                kind: io::ErrorKind::Unsupported,
                what: String::from(
                    "the server does not support range requests (it answers 200 instead of 206)",
                ),
                next: Next::Whole(answer.length),
            },
            None => Self::last(io::ErrorKind::InvalidData, deepest(error)),
        }
    }

    /// Judges the error of a request for the object, or for the credentials for it.
    pub(crate) fn of_read(error: &Error, record: &Record) -> Self {
        let mut failure = Self::of(error, record);
        if record.answer().aside {
            failure.what = format!("credentials: {}", failure.what);
            if failure.kind == io::ErrorKind::NotFound || matches!(failure.next, Next::Whole(_)) {
                failure.kind = io::ErrorKind::PermissionDenied;
                failure.next = Next::GiveUp;
            }
            if record.answer().status.is_none() && matches!(failure.next, Next::Again(_)) {
                failure.next = Next::Credentials;
            }
        }
        failure
    }

    fn status(status: StatusCode, pause: Option<Duration>, code: Option<&str>) -> Self {
        let kind = match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => io::ErrorKind::NotFound,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => io::ErrorKind::PermissionDenied,
            StatusCode::PRECONDITION_FAILED => return Self::changed(),
            StatusCode::RANGE_NOT_SATISFIABLE => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::Other,
        };
        let code = code.map_or_else(String::new, |code| format!(" ({code})"));
        let again = status.is_server_error()
            || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
        Self {
            kind,
            what: format!("the server answers {status}{code}"),
            next: match again {
                true => Next::Again(pause),
                false => Next::GiveUp,
            },
        }
    }

    fn transport(kind: HttpErrorKind, what: String) -> Self {
        match kind {
            HttpErrorKind::Connect => Self::passing(io::ErrorKind::NotConnected, what),
            HttpErrorKind::Timeout => Self::passing(io::ErrorKind::TimedOut, what),
            HttpErrorKind::Decode => Self::last(io::ErrorKind::InvalidData, what),
            _ => Self::passing(io::ErrorKind::ConnectionAborted, what),
        }
    }

    /// The error of a read, which names the object and the range.
    pub(crate) fn error(&self, object: &str, range: &Range<u64>) -> io::Error {
        io::Error::new(
            self.kind,
            format!(
                "{object}: bytes {}..{}: {}",
                range.start, range.end, self.what
            ),
        )
    }
}

/// The error of the connection below an error, if it was one.
fn transport(error: &Error) -> Option<(HttpErrorKind, String)> {
    let mut cause = error.source();
    while let Some(e) = cause {
        if let Some(http) = e.downcast_ref::<HttpError>() {
            return Some((http.kind(), deepest(http)));
        }
        cause = e.source();
    }
    None
}

/// The name without address below an error, if there is one.
fn unresolved(error: &Error) -> Option<&Unresolved> {
    let mut cause = error.source();
    while let Some(e) = cause {
        if let Some(found) = e.downcast_ref() {
            return Some(found);
        }
        cause = e.source();
    }
    None
}

/// Whether the two sides do not agree on TLS, so that another attempt would not help. A certificate is not trusted, a
/// server speaks something else, or the system has no certificates.
fn refuses_tls(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(e) = cause {
        // The source of an I/O error is that of the error in it.
        let inner = e.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = match inner {
            Some(inner) => inner.downcast_ref::<rustls::Error>(),
            None => e.downcast_ref::<rustls::Error>(),
        };
        if let Some(tls) = tls {
            return matches!(
                tls,
                rustls::Error::InvalidCertificate(_)
                    | rustls::Error::General(_)
                    | rustls::Error::InvalidMessage(_)
                    | rustls::Error::PeerIncompatible(_)
                    | rustls::Error::AlertReceived(_)
            );
        }
        cause = match inner {
            Some(inner) => Some(inner),
            None => e.source(),
        };
    }
    false
}

/// The text of the first cause of an error, which says the most.
pub(crate) fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    without_secrets(&of_system(&last.to_string()))
}

/// The text of an error of the system, without its number, and as a part of a sentence.
pub(crate) fn of_system(text: &str) -> String {
    let Some((text, _)) = text.split_once(" (os error ") else {
        return text.to_owned();
    };
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// Text of libraries, without the user, password and query of URLs in it, and on one line.
pub(crate) fn without_secrets(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || ['"', '\'', '<', '>', ')', '`'].contains(&c);
    let words = text.split_inclusive(is_end);
    words
        .map(|word| {
            let (body, end) = match word.chars().next_back() {
                Some(last) if is_end(last) => word.split_at(word.len() - last.len_utf8()),
                _ => (word, ""),
            };
            let end = if end.contains(char::is_control) {
                " "
            } else {
                end
            };
            match body.contains("://") || body.contains('?') {
                true => format!("{}{end}", redwarfs_io::place::shown(body)),
                false => format!("{body}{end}"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_libraries_loses_its_secrets() {
        for (text, want) in [
            (
                "for url (https://u:p@h/a?sig=1)",
                "for url (https://h/a?...)",
            ),
            ("GET /a?token=1 failed", "GET /a?... failed"),
            ("two\nlines", "two lines"),
            ("plain text, no more", "plain text, no more"),
        ] {
            assert_eq!(without_secrets(text), want);
        }
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (status, again) in [
            (500, true),
            (503, true),
            (429, true),
            (408, true),
            (404, false),
            (403, false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let failure = Failure::status(status, None, None);
            assert_eq!(failure.next == Next::Again(None), again, "{status}");
        }
        let changed = Failure::status(StatusCode::PRECONDITION_FAILED, None, None);
        assert!(changed.what.contains("has changed"), "{}", changed.what);
        let e = changed.error("s3://b/k", &(3..9));
        assert_eq!(
            e.to_string(),
            "s3://b/k: bytes 3..9: the image has changed while it was in use"
        );
    }
}
