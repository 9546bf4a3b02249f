//! The server of the control socket: adds, removes and lists images while they are mounted.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use redwarfs_fuse::{Images, SlotStatus};

use super::socket::{self, BAD, GOOD, Socket};
use super::{Given, Opener};
use crate::common::Logger;

/// Longest text of a failure.
const LONGEST_CAUSE: usize = 4096;

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
            for stream in self.0.listener.incoming() {
                match stream {
                    Ok(mut stream) if socket::is_allowed(&stream) => {
                        if let Err(error) = answer(&mut stream, &images, &opener, &logger) {
                            logger.verbose(format_args!("control socket: {error}"));
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
