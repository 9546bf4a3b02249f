//! Images on web servers and object stores, behind the source trait of `redwarfs-io`.
//!
//! [`RemoteSource`] reads an object of a server: `http://`, `https://`, `s3://`, `gs://` and `az://`. [`Upload`] makes a
//! new one in an object store. This crate is the
//! only one with an asynchronous runtime. Its two threads start with the first object that is opened, so a program
//! may fork before that. After a fork, objects that were opened before it give errors, and can be opened anew.
//!
//! ```no_run
//! use redwarfs_io::Source;
//! use redwarfs_remote::{Limits, RemoteSource};
//!
//! let source = RemoteSource::open("https://example.org/image.dwarfs", Limits::default())?;
//! let mut start = [0; 8];
//! source.read_exact_at(0, &mut start)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # From a read to bytes
//!
//! ```text
//! open      -> the last 12 KiB: length, version, and often index and metadata
//! will_need -> ranges: what is missing, neighbours joined -> transfers on their way, at most 6 at a time, and with reads 8
//! may_need  -> the same in shorter transfers, as long as there is much room
//! read      -> the transfer with the bytes, or a new one -> waits until they have arrived
//! ```
//!
//! * `location.rs`: URLs, stores, and the credentials that the environment has for them.
//! * `client.rs`: the connections, which objects of a server share; `certificates.rs`: the certificates of the system;
//!   `resolver.rs`: the addresses of servers.
//! * `listing.rs`: which objects there are.
//! * `fetch.rs`: requests, and attempts until the time is over.
//! * `opening.rs`: the first request; `known.rs`: what a cache on disk knows of an object, so that this request only asks
//!   whether it is still the same.
//! * `meter.rs`: measures the line, so that readers know how much must be on its way.
//! * `transfer.rs`: a range whose bytes arrive; `transfers.rs`: which of them there are; `source.rs`: reads and announcements.
//! * `observer.rs`: what a server answered; `failure.rs`: what to do about it, and what to say.
//!
//! # Errors
//!
//! A connection that breaks, a short answer, and the statuses 408, 429 and 5xx are tried again, after growing pauses
//! or that which the server asks for, from where the bytes ended. Everything else is an error at once: a changed
//! object, another range, more bytes than were asked for, compressed bytes. Errors name the object and the range.
//! They do not show users, passwords, and the queries of URLs.
//!
//! A server that is away when an object is opened is waited for as well, with a warning after a second. Only a name without
//! address is an error at once then, and credentials that no server gives are one after four attempts.
//!
//! # Credentials
//!
//! | scheme | where they come from |
//! |---|---|
//! | `http`, `https` | the URL, or `~/.netrc` (`NETRC`) |
//! | `s3` | `AWS_*` variables, `~/.aws/credentials` and `~/.aws/config` (`AWS_PROFILE`), web identity, containers, instances |
//! | `gs` | `GOOGLE_*` variables, application default credentials, instances |
//! | `az` | `AZURE_*` variables, managed identities |

mod aws_files;
mod certificates;
mod client;
mod failure;
mod fetch;
mod known;
mod listing;
mod location;
mod meter;
mod netrc;
mod observer;
mod opening;
mod resolver;
mod runtime;
mod source;
mod transfer;
mod transfers;
mod upload;

use std::time::Duration;

pub use listing::{Listed, list};
pub use source::RemoteSource;
pub use upload::Upload;

/// How long a server may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest time for opening an object, with all attempts and the pauses between them; 30 s by default.
    pub open: Duration,
    /// Longest time for a range, with all attempts, from the read that waits for it on; 60 s by default. It begins anew when bytes
    /// come, but ends at most one second later for each 64 KiB of the range.
    pub read: Duration,
    /// Longest time in which a server may send nothing before the attempt counts as failed; 15 s by default.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(30),
            read: Duration::from_secs(60),
            silence: Duration::from_secs(15),
        }
    }
}
