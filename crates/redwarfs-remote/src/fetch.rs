//! Requests for ranges: one attempt, and attempts until it works or the time is over.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::{GetOptions, GetRange, ObjectMeta};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::Limits;
use crate::failure::{Failure, Next};
use crate::location::Object;
use crate::meter::Asked;
use crate::observer::Record;
use crate::transfer::Transfer;

/// Pause before the second attempt. Each later one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Longest time that is waited for anything: no clock overflows with it (30 years).
pub(crate) const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Slowest line, in bytes a second, with which a long range counts as moving.
const SLOWEST: u64 = 64 << 10;

/// What must stay the same while an object is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) size: u64,
    pub(crate) tag: Option<String>,
    pub(crate) version: Option<String>,
    /// Seconds since 1970, from servers that have no tags.
    pub(crate) modified: i64,
}

impl Identity {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self {
            size: meta.size,
            tag: meta.e_tag.clone(),
            version: meta.version.clone(),
            modified: meta.last_modified.timestamp(),
        }
    }

    /// Whether a change of the object that leaves its size shows.
    pub(crate) fn is_certain(&self) -> bool {
        self.tag.is_some() || self.version.is_some() || self.modified != 0
    }

    /// A tag that a server may compare. Weak ones never match.
    fn condition(&self) -> Option<String> {
        self.tag.clone().filter(|tag| !tag.starts_with("W/"))
    }

    pub(crate) fn is_that_of(&self, meta: &ObjectMeta) -> bool {
        let other = Self::of(meta);
        match (&self.tag, &other.tag) {
            // Servers of a cluster may have different times for the same object. Weak tags may be the same for
            // different bytes.
            (Some(one), Some(two)) if !one.starts_with("W/") => {
                one == two && self.size == other.size
            }
            _ => *self == other,
        }
    }
}

/// An open answer.
pub(crate) struct Opened {
    pub(crate) meta: ObjectMeta,
    pub(crate) range: Range<u64>,
    body: BoxStream<'static, object_store::Result<Bytes>>,
    record: Record,
    asked: Asked,
}

/// Asks for a range once, and waits for the head of the answer.
pub(crate) async fn request(
    object: &Object,
    range: Option<GetRange>,
    identity: Option<&Identity>,
    limits: &Limits,
) -> Result<Opened, Failure> {
    let options = GetOptions {
        range,
        if_match: identity.and_then(Identity::condition),
        ..GetOptions::default()
    };
    match ask(object, options, identity, limits).await? {
        Some(opened) => Ok(opened),
        None => Err(Failure::last(
            io::ErrorKind::InvalidData,
            "the server answers a question that was not asked",
        )),
    }
}

/// Asks for a range, unless the object is what it was: then there is nothing.
pub(crate) async fn request_if_changed(
    object: &Object,
    range: Option<GetRange>,
    known: &Identity,
    limits: &Limits,
) -> Result<Option<Opened>, Failure> {
    let options = GetOptions {
        range,
        // A weak tag may be the same for other bytes: then the attributes are compared.
        if_none_match: known.condition(),
        ..GetOptions::default()
    };
    let opened = ask(object, options, None, limits).await?;
    // From servers without tags.
    Ok(opened.filter(|opened| !known.is_that_of(&opened.meta)))
}

async fn ask(
    object: &Object,
    mut options: GetOptions,
    identity: Option<&Identity>,
    limits: &Limits,
) -> Result<Option<Opened>, Failure> {
    let record = Record::default();
    options.extensions.insert(record.clone());
    let asked = object.meter.ask();
    let answer = record.of(object.store.get_opts(&object.path, options));
    let answered = timeout(limits.silence, answer).await;
    let result = match answered.map_err(|_| silent())? {
        Ok(result) => {
            asked.answered();
            result
        }
        Err(object_store::Error::NotModified { .. }) => {
            asked.answered();
            return Ok(None);
        }
        // A connection that is refused says nothing of the line.
        Err(e) => return Err(Failure::of_read(&e, &record)),
    };
    if identity.is_some_and(|identity| !identity.is_that_of(&result.meta)) {
        return Err(Failure::changed());
    }
    let length = result.range.end.saturating_sub(result.range.start);
    if let Some(stated) = record.answer().length.filter(|stated| *stated != length) {
        let what = format!("the server announces {stated} instead of {length} bytes");
        return Err(Failure::last(io::ErrorKind::InvalidData, what));
    }
    Ok(Some(Opened {
        meta: result.meta.clone(),
        range: result.range.clone(),
        body: result.into_stream(),
        record,
        asked,
    }))
}

/// The attributes of an object, from servers that do not send the last bytes of an object of unknown length.
pub(crate) async fn head(object: &Object, limits: &Limits) -> Result<ObjectMeta, Failure> {
    let record = Record::default();
    let mut options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    options.extensions.insert(record.clone());
    let asked = record.of(object.store.get_opts(&object.path, options));
    let answered = timeout(limits.silence, asked).await;
    let result = answered.map_err(|_| silent())?;
    result
        .map(|result| result.meta)
        .map_err(|e| Failure::of_read(&e, &record))
}

fn silent() -> Failure {
    Failure::passing(io::ErrorKind::TimedOut, "the server does not answer")
}

impl Opened {
    /// Takes the body, which must have exactly `length` bytes.
    pub(crate) async fn receive(
        mut self,
        length: u64,
        limits: &Limits,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        let mut got = 0;
        loop {
            let next = timeout(limits.silence, self.body.next()).await;
            let next = next.map_err(|_| {
                Failure::passing(
                    io::ErrorKind::TimedOut,
                    format!("the server sends nothing more after {got} of {length} bytes"),
                )
            })?;
            match next {
                Some(Ok(bytes)) => {
                    got += bytes.len() as u64;
                    self.asked.received(bytes.len() as u64);
                    if got > length {
                        let what = format!(
                            "the server sends more than the {length} bytes that were asked for"
                        );
                        return Err(Failure::last(io::ErrorKind::InvalidData, what));
                    }
                    sink(&bytes);
                }
                Some(Err(e)) => {
                    let mut failure = Failure::of_read(&e, &self.record);
                    if let Next::Whole(_) = failure.next {
                        failure.next = Next::GiveUp;
                    }
                    failure.what = format!("after {got} of {length} bytes: {}", failure.what);
                    return Err(failure);
                }
                None if got < length => {
                    return Err(Failure::passing(
                        io::ErrorKind::UnexpectedEof,
                        format!("the server sends {got} instead of {length} bytes"),
                    ));
                }
                None => return Ok(()),
            }
        }
    }
}

/// The attempts at one thing: their number, and the end of the time for all of them.
pub(crate) struct Attempts {
    began: Instant,
    end: Instant,
    /// Those that failed.
    made: u32,
    longest_pause: Duration,
    last: Option<Failure>,
}

impl Attempts {
    /// Until `time` is over.
    pub(crate) fn new(time: Duration) -> Self {
        let began = Instant::now();
        Self {
            began,
            end: began + time.min(FOREVER),
            made: 0,
            longest_pause: LONGEST_PAUSE,
            last: None,
        }
    }

    /// With pauses that are never longer, unless the server asks for it.
    pub(crate) fn pausing(self, longest_pause: Duration) -> Self {
        Self {
            longest_pause,
            ..self
        }
    }

    /// How many attempts failed.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// The failure of all attempts, with the cause of the last one that has one.
    fn given_up(&self, kind: io::ErrorKind, what: &str) -> Failure {
        let attempts = match self.made {
            1 => String::from("1 attempt"),
            more => format!("{more} attempts"),
        };
        let time = self.began.elapsed().as_secs();
        Failure::last(kind, format!("{what} ({attempts} in {time} s)"))
    }

    /// The time for a range of this length.
    pub(crate) fn time(limits: &Limits, length: u64) -> Duration {
        limits
            .read
            .saturating_add(Duration::from_secs(length / SLOWEST))
    }

    /// Runs one attempt, and the pause after it if it failed. `Ok(None)` means to try again.
    pub(crate) async fn next<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Option<T>, Failure> {
        let end = self.end;
        self.next_until(attempt, || end).await
    }

    /// The same, with an end that may be later after a while.
    async fn next_until<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Failure>>,
        end: impl Fn() -> Instant,
    ) -> Result<Option<T>, Failure> {
        let mut attempt = pin!(attempt);
        let done = loop {
            let limit = end();
            match timeout_at(limit, attempt.as_mut()).await {
                Err(_) if end() > limit => {}
                done => break done,
            }
        };
        let failure = match done {
            Err(_) => {
                return Err(match &self.last {
                    Some(last) => self.given_up(last.kind, &last.what),
                    None => {
                        let what = "the server does not answer in time";
                        Failure::last(io::ErrorKind::TimedOut, what)
                    }
                });
            }
            Ok(Ok(value)) => return Ok(Some(value)),
            Ok(Err(failure)) => failure,
        };
        let wanted = match failure.next {
            Next::Again(wanted) => wanted,
            Next::Unresolved | Next::Credentials => None,
            Next::GiveUp | Next::Whole(_) => return Err(failure),
        };
        self.made += 1;
        let pause = pause(self.made).min(self.longest_pause);
        let pause = pause.max(wanted.unwrap_or_default());
        if end().saturating_duration_since(Instant::now()) <= pause {
            return Err(self.given_up(failure.kind, &failure.what));
        }
        self.last = Some(failure);
        sleep(pause).await;
        Ok(None)
    }
}

/// The pause after the `made`th attempt: between a half and all of what doubling gives, so that many clients do not
/// return at the same moment.
fn pause(made: u32) -> Duration {
    let full = FIRST_PAUSE
        .saturating_mul(1 << made.saturating_sub(1).min(16))
        .min(LONGEST_PAUSE);
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), made);
    full.mul_f64(0.5 + 0.5 * (random % 1024) as f64 / 1024.0)
}

/// Fills a transfer. Attempts after the first one continue where the bytes ended.
pub(crate) async fn fill(
    object: &Object,
    identity: &Identity,
    transfer: &Transfer,
    limits: &Limits,
) {
    transfer.begins();
    let mut attempts = Attempts::new(FOREVER);
    while !transfer.is_settled() {
        let attempt = async {
            let from = transfer.range.start + transfer.arrived();
            let rest = from..transfer.range.end;
            let range = Some(GetRange::Bounded(rest.clone()));
            let opened = request(object, range, Some(identity), limits).await?;
            if opened.range != rest {
                let what = "the server sends another range than that which was asked for";
                return Err(Failure::last(io::ErrorKind::InvalidData, what));
            }
            let length = rest.end - rest.start;
            opened
                .receive(length, limits, |bytes| {
                    transfer.add(bytes);
                })
                .await
        };
        let attempt = async {
            attempt
                .await
                .inspect_err(|failure| transfer.has_trouble(failure))
        };
        let end = || Instant::from_std(transfer.deadline(limits));
        match attempts.next_until(attempt, end).await {
            Ok(Some(())) => return,
            Ok(None) => {}
            Err(failure) => {
                transfer.fail(failure);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_weak_tags_do_not_prove_the_same_bytes() {
        let of = |tag: &str, modified| Identity {
            size: 1,
            tag: Some(tag.to_owned()),
            version: None,
            modified,
        };
        let meta = |tag: &str, modified: i64| ObjectMeta {
            location: object_store::path::Path::default(),
            last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
            size: 1,
            e_tag: Some(tag.to_owned()),
            version: (modified != 0).then(|| modified.to_string()),
        };
        assert!(of("\"a\"", 0).is_that_of(&meta("\"a\"", 7)));
        assert!(!of("\"a\"", 0).is_that_of(&meta("\"b\"", 0)));
        assert!(of("W/\"a\"", 0).is_that_of(&meta("W/\"a\"", 0)));
        assert!(!of("W/\"a\"", 5).is_that_of(&meta("W/\"a\"", 0)));
        assert!(!of("W/\"a\"", 0).is_that_of(&meta("W/\"a\"", 7)));
    }

    #[test]
    fn pauses_grow_and_differ() {
        let range = |made| {
            let all: Vec<_> = (0..50).map(|_| pause(made)).collect();
            (*all.iter().min().unwrap(), *all.iter().max().unwrap())
        };
        for (made, most) in [(1, 100), (2, 200), (5, 1600), (20, 8000), (u32::MAX, 8000)] {
            let (min, max) = range(made);
            assert!(min >= Duration::from_millis(most / 2), "{made}: {min:?}");
            assert!(max <= Duration::from_millis(most), "{made}: {max:?}");
            assert!(min < max);
        }
    }
}
