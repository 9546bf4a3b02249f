//! Reads files of an image in an asynchronous program: an adapter that implements `AsyncRead` of tokio.
//!
//! ```text
//! cargo run -p redwarfs --example async_read -- doc.dwarfs bash/README bash/CHANGES
//! ```
//!
//! Reading may decompress a block, which takes milliseconds, so it belongs on the threads that tokio keeps for blocking
//! work.

use std::error::Error;
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use redwarfs::{File, Image};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::{JoinHandle, spawn_blocking};

/// Bytes that one blocking task reads.
const STEP: usize = 256 << 10;

/// A file of an image as a stream of bytes.
pub(crate) struct AsyncFile {
    file: Arc<File>,
    /// Where the next task reads.
    offset: u64,
    /// What was read and not yet taken, from `taken` on.
    bytes: Vec<u8>,
    taken: usize,
    task: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

impl AsyncFile {
    pub(crate) fn new(file: File) -> Self {
        Self {
            file: Arc::new(file),
            offset: 0,
            bytes: Vec::new(),
            taken: 0,
            task: None,
        }
    }

    fn start(&self) -> JoinHandle<io::Result<Vec<u8>>> {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        spawn_blocking(move || {
            let mut bytes = vec![0; STEP];
            let count = file.read_at(offset, &mut bytes).map_err(io::Error::other)?;
            bytes.truncate(count);
            Ok(bytes)
        })
    }
}

impl AsyncRead for AsyncFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken == self.bytes.len() && self.offset < self.file.len() {
            let mut task = self.task.take().unwrap_or_else(|| self.start());
            let Poll::Ready(read) = Pin::new(&mut task).poll(context) else {
                self.task = Some(task);
                return Poll::Pending;
            };
            self.bytes = read??;
            self.taken = 0;
            self.offset += self.bytes.len() as u64;
        }
        let count = out.remaining().min(self.bytes.len() - self.taken);
        out.put_slice(&self.bytes[self.taken..self.taken + count]);
        self.taken += count;
        Poll::Ready(Ok(()))
    }
}

/// Reads all files at the same time.
pub(crate) async fn read_all(image: &Image, paths: &[String]) -> io::Result<Vec<Vec<u8>>> {
    let mut tasks = Vec::new();
    for path in paths {
        let mut file = AsyncFile::new(image.file(path).map_err(io::Error::other)?);
        tasks.push(tokio::spawn(async move {
            let mut bytes = Vec::new();
            tokio::io::copy(&mut file, &mut bytes).await?;
            Ok::<_, io::Error>(bytes)
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await??);
    }
    Ok(all)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((image, paths)) = args.split_first() else {
        return Err("usage: async_read IMAGE PATH...".into());
    };
    let image = Image::open(image)?;
    tokio::runtime::Builder::new_multi_thread()
        .build()?
        .block_on(async {
            for bytes in read_all(&image, paths).await? {
                io::stdout().write_all(&bytes)?;
            }
            Ok(())
        })
}
