//! The server of the control socket: adds, removes and lists images while they are mounted.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs_fuse::{ChangeError, Images, SlotStatus};

use super::socket::{self, BAD, GOOD, Socket};
use super::{Given, Opener};
use crate::common::Logger;

/// Longest text of a failure.
const LONGEST_CAUSE: usize = 4096;
/// What an error of an image begins with. The client says what it could not do instead.
const CANNOT_OPEN: &str = "cannot open image: ";
/// Most requests that are carried out at the same time. One that adds an image may wait for a server.
const AT_ONCE: usize = 16;

/// A control socket that nobody serves yet.
#[derive(Debug)]
pub(in crate::dwarfs) struct Control(Socket);

/// Removes the socket at the end.
#[derive(Debug)]
pub(in crate::dwarfs) struct Served {
    _socket: PathOfSocket,
}

#[derive(Debug)]
struct PathOfSocket(PathBuf);

impl Drop for PathOfSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Control {
    /// Makes the socket.
    ///
    /// # Errors
    /// Those of the system.
    pub(in crate::dwarfs) fn bind(path: Option<&Path>) -> io::Result<Self> {
        Socket::bind(path).map(Self)
    }

    pub(in crate::dwarfs) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Serves it in a thread, until the process ends.
    ///
    /// # Errors
    /// There is no thread.
    pub(in crate::dwarfs) fn serve(
        self,
        images: Images,
        opener: Opener,
        logger: &Logger,
    ) -> io::Result<Served> {
        let path = PathOfSocket(self.path().to_owned());
        let logger = logger.clone();
        let serve = move || {
            let running = Arc::new(());
            for stream in self.0.listener.incoming() {
                match stream {
                    Ok(mut stream) if socket::is_allowed(&stream) => {
                        let (images, opener) = (images.clone(), opener.clone());
                        let (logger, own) = (logger.clone(), Arc::clone(&running));
                        let work = move || {
                            if let Err(error) = answer(&mut stream, &images, &opener, &logger) {
                                logger.verbose(format_args!("control socket: {error}"));
                            }
                            drop(own);
                        };
                        // Its own count, and that of this one.
                        if Arc::strong_count(&running) > AT_ONCE + 1 {
                            work();
                        } else {
                            let thread = std::thread::Builder::new().name(String::from("control"));
                            // Without one, the client gets no reply, and says so.
                            let _ = thread.spawn(work);
                        }
                    }
                    Ok(_) => logger.warn("control socket: refused another user"),
                    Err(error) => {
                        logger.warn(format_args!("control socket: {error}"));
                        std::thread::sleep(std::time::Duration::from_secs(1));
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name(String::from("control"))
            .spawn(serve)?;
        Ok(Served { _socket: path })
    }
}

fn answer(
    stream: &mut UnixStream,
    images: &Images,
    opener: &Opener,
    logger: &Logger,
) -> io::Result<()> {
    let request = socket::receive(stream)?;
    let reply = match carry_out(&socket::fields(&request), images, opener, logger) {
        Ok(mut fields) => {
            fields.insert(0, GOOD);
            fields
        }
        Err(cause) => {
            let mut reply = vec![BAD];
            let cause: String = cause.chars().take(LONGEST_CAUSE).collect();
            socket::put(&mut reply, cause);
            reply
        }
    };
    socket::send(stream, &reply)
}

/// Carries out a request. Returns the fields of the reply.
fn carry_out(
    request: &[&OsStr],
    images: &Images,
    opener: &Opener,
    logger: &Logger,
) -> Result<Vec<u8>, String> {
    let mut reply = Vec::new();
    match request {
        [command, name, image] if *command == "add" => {
            let given = Given {
                name: (*name).to_owned(),
                image: PathBuf::from(image),
            };
            if images.list().iter().any(|image| image.name == given.name) {
                return Err(ChangeError::Exists(given.name).to_string());
            }
            opener.try_image(&given.image).map_err(|error| {
                let text = error.to_string();
                let cause = text.strip_prefix(CANNOT_OPEN).map(str::to_owned);
                cause.unwrap_or(text)
            })?;
            let named = opener.named(given);
            let source = named.source.clone();
            images.add(named).map_err(|error| error.to_string())?;
            logger.info(format_args!("added image '{}': {source}", name.display()));
        }
        [command, name] if *command == "remove" => {
            images.remove(name).map_err(|error| error.to_string())?;
            logger.info(format_args!("removed image '{}'", name.display()));
        }
        [command] if *command == "list" => {
            for image in images.list() {
                let (status, cause) = match image.status {
                    SlotStatus::Open => ("open", String::new()),
                    SlotStatus::Failed(cause) => ("failed", cause),
                    _ => ("closed", String::new()),
                };
                socket::put(&mut reply, image.name);
                socket::put(&mut reply, image.source);
                socket::put(&mut reply, image.slot.to_string());
                socket::put(&mut reply, status);
                socket::put(&mut reply, cause);
                socket::put(&mut reply, image.bytes.to_string());
                socket::put(&mut reply, image.inodes.to_string());
            }
        }
        _ => return Err(String::from("the driver does not know this command")),
    }
    Ok(reply)
}
