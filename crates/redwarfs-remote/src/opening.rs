//! The first request for an object: its end, its length and its version.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use object_store::GetRange;
use tokio::time::sleep;

use crate::Limits;
use crate::failure::{Failure, Next};
use crate::fetch::{self, Attempts, Identity, Opened};
use crate::known::Remembered;
use crate::location::Object;
use crate::transfer::Transfer;

/// Largest object of a server that does not send ranges (64 MiB). It is fetched as a whole.
const WHOLE: u64 = 64 << 20;

/// Bytes at the end of an object that the first request asks for (12 KiB). They and the head of the answer fit into the
/// ten segments that a new connection sends in its first round trip. The request for what is missing leaves together with
/// the acknowledgements of these segments, so the connection gets up to speed as with one longer answer.
const TAIL: u64 = 12 << 10;

/// Bytes at the end of an object whose length was asked for before (64 KiB): with the metadata of more images, there are no
/// three requests.
const TAIL_AFTER_HEAD: u64 = 64 << 10;

/// Attempts at the first request if no server gives the credentials for it.
const CREDENTIALS: u32 = 4;

/// Longest pause between two attempts at the first request, because somebody waits for it.
const PAUSE: Duration = Duration::from_secs(2);

/// After this time, a warning says that the server is waited for.
const QUIET: Duration = Duration::from_secs(1);

/// What is known of an object when it is open.
pub(crate) struct Found {
    pub(crate) identity: Identity,
    pub(crate) transfers: Vec<Arc<Transfer>>,
    pub(crate) requests: u64,
    /// Whether the cache has other transfers, or none.
    pub(crate) changed: bool,
}

impl Found {
    /// What the cache knows. `only` if the server is not asked for it again.
    pub(crate) fn remembered(remembered: Remembered, only: bool) -> Self {
        let size = remembered.identity.size;
        let transfer = |(start, bytes): (u64, Vec<u8>)| {
            // The server may not send parts.
            let whole = start == 0 && bytes.len() as u64 == size;
            match only || whole {
                true => Transfer::only(start, bytes),
                false => Transfer::complete(start, bytes),
            }
        };
        Self {
            transfers: remembered.parts.into_iter().map(transfer).collect(),
            identity: remembered.identity,
            requests: 0,
            changed: false,
        }
    }
}

/// Opens an object: with what is `remembered`, if it is still the same. Says so if that takes long.
pub(crate) async fn first(
    object: &Object,
    limits: &Limits,
    remembered: Option<Remembered>,
) -> Result<Found, Failure> {
    let trouble = Mutex::new(None);
    let opening = pin!(attempt(object, limits, remembered, &trouble));
    match select(opening, pin!(sleep(QUIET))).await {
        Either::Left((opened, _)) => opened,
        Either::Right(((), opening)) => {
            let cause = trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            tracing::warn!(
                "{}: {}: waiting for the server, for up to {} s",
                object.shown,
                cause.unwrap_or_else(|| String::from("no answer so far")),
                limits.open.as_secs()
            );
            opening.await
        }
    }
}

/// Makes attempts until one works, nothing helps, or the time is over. `trouble` gets the cause of the last failure.
async fn attempt(
    object: &Object,
    limits: &Limits,
    remembered: Option<Remembered>,
    trouble: &Mutex<Option<String>>,
) -> Result<Found, Failure> {
    let mut attempts = Attempts::new(limits.open).pausing(PAUSE);
    loop {
        let known = remembered.as_ref().map(|remembered| &remembered.identity);
        let made = attempts.made();
        let answer = async {
            tail(object, limits, known).await.map_err(|mut failure| {
                if failure.next == Next::Unresolved
                    || (failure.next == Next::Credentials && made + 1 >= CREDENTIALS)
                {
                    failure.next = Next::GiveUp;
                }
                let mut last = trouble.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(failure.what.clone());
                failure
            })
        };
        match attempts.next(answer).await? {
            Some(Answer::Found(found)) => return Ok(found),
            Some(Answer::Same(requests)) => {
                // Only asked for if there is something.
                if let Some(remembered) = remembered {
                    let found = Found::remembered(remembered, false);
                    return Ok(Found { requests, ..found });
                }
                return Err(Failure::last(
                    io::ErrorKind::InvalidData,
                    "nothing was sent",
                ));
            }
            None => {}
        }
    }
}

enum Answer {
    Found(Found),
    /// The object is what it was; after so many requests.
    Same(u64),
}

async fn tail(
    object: &Object,
    limits: &Limits,
    remembered: Option<&Identity>,
) -> Result<Answer, Failure> {
    let (range, known) = match object.suffixes {
        true => (GetRange::Suffix(TAIL), None),
        false => {
            let meta = fetch::head(object, limits).await?;
            if remembered.is_some_and(|remembered| remembered.is_that_of(&meta)) {
                return Ok(Answer::Same(1));
            }
            let start = meta.size.saturating_sub(TAIL_AFTER_HEAD);
            (
                GetRange::Bounded(start..meta.size),
                Some(Identity::of(&meta)),
            )
        }
    };
    let requests = 1 + u64::from(known.is_some());
    if known.as_ref().is_some_and(|known| known.size == 0) {
        return Err(Failure::last(
            io::ErrorKind::UnexpectedEof,
            "the object is empty",
        ));
    }
    let asked = match remembered.filter(|_| known.is_none()) {
        Some(remembered) => {
            fetch::request_if_changed(object, Some(range), remembered, limits).await
        }
        None => {
            let opened = fetch::request(object, Some(range), known.as_ref(), limits).await;
            opened.map(Some)
        }
    };
    let mut whole = false;
    let (opened, requests) = match asked {
        Ok(Some(opened)) => (opened, requests),
        Ok(None) => return Ok(Answer::Same(requests)),
        Err(Failure {
            next: Next::Whole(length),
            ..
        }) if length.is_some_and(|length| length <= WHOLE) => {
            whole = true;
            let opened = match remembered {
                Some(remembered) => {
                    fetch::request_if_changed(object, None, remembered, limits).await?
                }
                None => Some(fetch::request(object, None, known.as_ref(), limits).await?),
            };
            match opened {
                Some(opened) => (opened, requests + 1),
                None => return Ok(Answer::Same(requests + 1)),
            }
        }
        Err(mut failure) => {
            if let Next::Whole(length) = failure.next {
                let length = length.map(|length| format!(" of {} MiB", length >> 20));
                failure.what.push_str(&format!(
                    ", and an image{} is too large to be fetched as a whole: download it to a file, or use a server \
                     that supports them, such as nginx",
                    length.unwrap_or_default()
                ));
            }
            if failure.kind == io::ErrorKind::UnexpectedEof && failure.next == Next::GiveUp {
                failure.what = String::from("the object is empty");
            }
            return Err(failure);
        }
    };
    receive(limits, opened, whole, requests)
        .await
        .map(Answer::Found)
}

/// Takes the end of an object, or the whole of it.
async fn receive(
    limits: &Limits,
    opened: Opened,
    whole: bool,
    requests: u64,
) -> Result<Found, Failure> {
    let identity = Identity::of(&opened.meta);
    let (start, end) = (opened.range.start, opened.range.end);
    let length = end.saturating_sub(start);
    if end != identity.size || length > WHOLE {
        let what = "the server sends another range than that which was asked for";
        return Err(Failure::last(io::ErrorKind::InvalidData, what));
    }
    let mut bytes = Vec::new();
    opened
        .receive(length, limits, |more| bytes.extend_from_slice(more))
        .await?;
    let transfer = match whole {
        true => Transfer::only(start, bytes),
        false => Transfer::complete(start, bytes),
    };
    Ok(Found {
        identity,
        transfers: vec![transfer],
        requests,
        changed: true,
    })
}
