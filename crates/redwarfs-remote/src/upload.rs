//! A new object, which appears when it is complete.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::StatusCode;
use object_store::{Error, GetOptions, MultipartUpload, ObjectStoreExt as _, PutMode, PutPayload};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Use;
use crate::failure::Failure;
use crate::location::Object;
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
    sending: VecDeque<JoinHandle<Result<(), Failure>>>,
    buffer: Vec<u8>,
    begun: usize,
    replace: bool,
    stop: Arc<AtomicBool>,
}

/// Does something with the store.
async fn asked<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    asked_with(Record::default(), work).await
}

async fn asked_with<T>(
    record: Record,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Failure> {
    record.of(work).await.map_err(|error| {
        let mut failure = Failure::of(&error, &record);
        failure.kind = match error {
            Error::NotFound { .. } => io::ErrorKind::NotFound,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => {
                io::ErrorKind::AlreadyExists
            }
            Error::NotImplemented { .. } => io::ErrorKind::Unsupported,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                io::ErrorKind::PermissionDenied
            }
            _ => failure.kind,
        };
        failure
    })
}

impl Upload {
    /// Begins an object. With `replace`, one that is there stays until the new one is complete. Otherwise there must
    /// be none, now and at the end. One that appears in the last moment is replaced only if the store knows no
    /// condition. S3 stores of other providers may know none, and `gs` and `az` stores know none for objects of several parts.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], [`io::ErrorKind::PermissionDenied`], [`io::ErrorKind::Unsupported`] for web
    /// servers, and the errors of the network. The text begins with the URL, without secrets. Once `stop` is set,
    /// everything is an error soon.
    pub fn create(url: &str, replace: bool, stop: Arc<AtomicBool>) -> io::Result<Self> {
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
            stop,
        };
        upload.refuse_to_replace()?;
        let object = upload.object.clone();
        let work = asked(object.store.put_multipart(&object.path));
        let begun = upload
            .threads
            .block_on_until(&upload.stop, work)
            .and_then(|done| done);
        upload.parts = Some(begun.map_err(|failure| upload.error(&failure))?);
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
        let object = &self.object;
        let found = async {
            match object.store.get_opts(&object.path, options).await {
                Ok(_) => Ok(true),
                Err(Error::NotFound { .. }) => Ok(false),
                Err(e) => Err(e),
            }
        };
        match self
            .threads
            .block_on_until(&self.stop, asked(found))
            .and_then(|done| done)
        {
            Ok(true) => Err(self.exists()),
            Ok(false) => Ok(()),
            Err(failure) => Err(self.error(&failure)),
        }
    }

    fn error(&self, failure: &Failure) -> io::Error {
        if failure.kind == io::ErrorKind::AlreadyExists {
            return self.exists();
        }
        io::Error::new(failure.kind, format!("{}: {}", self.shown, failure.what))
    }

    fn exists(&self) -> io::Error {
        let what = format!("{}: the object exists", self.shown);
        io::Error::new(io::ErrorKind::AlreadyExists, what)
    }

    /// Length of the next part.
    fn part(&self) -> usize {
        PART << (self.begun / STEP)
    }

    /// Waits until at most `left` parts are being sent.
    fn settle(&mut self, left: usize) -> io::Result<()> {
        while self.sending.len() > left
            && let Some(task) = self.sending.front_mut()
        {
            let lost = |_| Failure::last(io::ErrorKind::Other, "a part was not sent");
            let ended = self.threads.block_on_until(&self.stop, &mut *task);
            let sent = ended.and_then(|joined| joined.map_err(lost)?);
            // One that goes on ends with the upload.
            if sent.is_ok() {
                self.sending.pop_front();
            }
            sent.map_err(|failure| self.error(&failure))?;
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
        self.sending
            .push_back(self.threads.handle().spawn(asked(part)));
        Ok(())
    }

    /// Completes the object.
    ///
    /// # Errors
    /// Those of sending the rest, and of [`Upload::create`]. There is no new object then.
    pub fn commit(mut self) -> io::Result<()> {
        if self.begun == 0 && !self.replace && self.create_at_once()? {
            return Ok(());
        }
        self.send()?;
        self.settle(0)?;
        self.refuse_to_replace()?;
        let Some(parts) = &mut self.parts else {
            return Err(io::Error::other("the upload has ended"));
        };
        let record = match !self.replace && self.shown.starts_with("s3:") {
            true => Record::of_new_object(),
            false => Record::default(),
        };
        let work = asked_with(record, parts.complete());
        let done = self
            .threads
            .block_on_until(&self.stop, work)
            .and_then(|done| done);
        done.map_err(|failure| self.error(&failure))?;
        self.parts = None;
        Ok(())
    }
}

impl Upload {
    /// Makes an object of one part, if there is none. All stores know that condition, but for some S3 stores of other
    /// providers: then this returns false. The parts that were begun are dropped with the upload.
    fn create_at_once(&mut self) -> io::Result<bool> {
        let payload = PutPayload::from(self.buffer.clone());
        let object = self.object.clone();
        let made = object
            .store
            .put_opts(&object.path, payload, PutMode::Create.into());
        let record = Record::default();
        let work = asked_with(record.clone(), made);
        match self
            .threads
            .block_on_until(&self.stop, work)
            .and_then(|done| done)
        {
            Ok(_) => Ok(true),
            Err(failure) => {
                let lacks = failure.kind == io::ErrorKind::Unsupported
                    || record.answer().status == Some(StatusCode::NOT_IMPLEMENTED);
                match lacks {
                    true => Ok(false),
                    false => Err(self.error(&failure)),
                }
            }
        }
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
