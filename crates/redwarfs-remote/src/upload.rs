//! A new object, which appears when it is complete.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use object_store::{Error, GetOptions, MultipartUpload, ObjectStoreExt as _, PutPayload};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::location::{Object, Use};
use crate::observer::Record;
use crate::runtime::Threads;

/// Length of the first parts (16 MiB). After each [`STEP`] parts, their length doubles: stores take 10,000 of
/// them.
const PART: usize = 16 << 20;
const STEP: usize = 2000;
/// Largest number of parts.
const PARTS: usize = 10_000;

/// Parts that are sent at the same time.
const SENDING: usize = 4;

/// How long removing the parts of an abandoned object may take.
const ABORT: Duration = Duration::from_secs(10);

/// A new object of an object store. It appears with [`Upload::commit`]. Without that, the store is told to drop the
/// parts.
///
/// Takes memory for up to five parts: 80 MiB, and more for objects of more than 31 GiB. The largest object has about
/// 970 GiB.
pub struct Upload {
    shown: String,
    object: Object,
    threads: Threads,
    /// None once it has ended.
    parts: Option<Box<dyn MultipartUpload>>,
    sending: VecDeque<JoinHandle<Result<(), Error>>>,
    buffer: Vec<u8>,
    begun: usize,
    replace: bool,
}

impl Upload {
    /// Begins an object. With `replace`, one that is there stays until the new one is complete. Otherwise there must
    /// be none, now and at the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], [`io::ErrorKind::PermissionDenied`], [`io::ErrorKind::Unsupported`] for web
    /// servers, and the errors of the network. The text begins with the URL, without secrets.
    pub fn create(url: &str, replace: bool) -> io::Result<Self> {
        let object = Object::of(url, Use::Write)?;
        let named = |kind, what: &str| io::Error::new(kind, format!("{}: {what}", object.shown));
        if !object.writable {
            let what = "images can be written to s3, gs and az only";
            return Err(named(io::ErrorKind::Unsupported, what));
        }
        let threads = Threads::get()?;
        let mut upload = Self {
            shown: object.shown.clone(),
            object,
            threads,
            parts: None,
            sending: VecDeque::new(),
            buffer: Vec::new(),
            begun: 0,
            replace,
        };
        upload.refuse_to_replace()?;
        let begun = upload
            .threads
            .block_on(upload.object.store.put_multipart(&upload.object.path));
        upload.parts = Some(begun.map_err(|e| upload.error(&e))?);
        Ok(upload)
    }

    /// An error if there is an object and it must not be replaced.
    fn refuse_to_replace(&self) -> io::Result<()> {
        if self.replace {
            return Ok(());
        }
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = self.object.store.get_opts(&self.object.path, options);
        match self.threads.block_on(found) {
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{}: the object exists", self.shown),
            )),
            Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.error(&e)),
        }
    }

    fn error(&self, error: &Error) -> io::Error {
        let failure = Failure::of(error, &Record::default());
        let kind = match error {
            Error::NotFound { .. } => io::ErrorKind::NotFound,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                io::ErrorKind::PermissionDenied
            }
            _ => failure.kind,
        };
        io::Error::new(kind, format!("{}: {}", self.shown, failure.what))
    }

    /// Length of the next part.
    fn part(&self) -> usize {
        PART << (self.begun / STEP)
    }

    /// Waits until at most `left` parts are being sent.
    fn settle(&mut self, left: usize) -> io::Result<()> {
        while self.sending.len() > left
            && let Some(task) = self.sending.pop_front()
        {
            match self.threads.block_on(task) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return Err(self.error(&e)),
                Err(_) => {
                    return Err(io::Error::other(format!(
                        "{}: a part was not sent",
                        self.shown
                    )));
                }
            }
        }
        Ok(())
    }

    /// Sends what is in the buffer.
    fn send(&mut self) -> io::Result<()> {
        if self.begun >= PARTS {
            let what = format!("{}: the object is too large", self.shown);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        self.settle(SENDING - 1)?;
        let ended = || io::Error::other("the upload has ended");
        let parts = self.parts.as_mut().ok_or_else(ended)?;
        let part = parts.put_part(PutPayload::from(std::mem::take(&mut self.buffer)));
        self.begun += 1;
        self.sending.push_back(self.threads.handle().spawn(part));
        Ok(())
    }

    /// Completes the object.
    ///
    /// # Errors
    /// Those of sending the rest, and of [`Upload::create`]. There is no new object then.
    pub fn commit(mut self) -> io::Result<()> {
        self.send()?;
        self.settle(0)?;
        self.refuse_to_replace()?;
        let Some(parts) = &mut self.parts else {
            return Err(io::Error::other("the upload has ended"));
        };
        let done = self.threads.block_on(parts.complete());
        done.map_err(|e| self.error(&e))?;
        self.parts = None;
        Ok(())
    }
}

impl Write for Upload {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let length = self.part();
        if self.buffer.len() >= length {
            self.send()?;
        }
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(self.part());
        }
        let n = buf.len().min(self.part() - self.buffer.len());
        self.buffer.extend_from_slice(&buf[..n]);
        Ok(n)
    }

    /// Does nothing: parts have a least length.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        for task in &self.sending {
            task.abort();
        }
        let Some(mut parts) = self.parts.take() else {
            return;
        };
        let ended = self
            .threads
            .block_on(async { timeout(ABORT, parts.abort()).await });
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!(
                "{}: the store still has parts of the object that was not completed",
                self.shown
            );
        }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("url", &self.shown)
            .field("parts", &self.begun)
            .finish_non_exhaustive()
    }
}
