//! The system log: messages to the socket `/dev/log`, in the form that syslog(3) sends.

use std::io::{self, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::common::log_level::LogLevel;
use crate::common::time::LocalTime;

/// Where the system's logger listens.
pub(crate) const SOCKET: &str = "/dev/log";
/// `LOG_DAEMON`.
const FACILITY: u8 = 3 << 3;
/// Longer lines are cut; loggers accept at least this much.
const MAX_LINE: usize = 7 << 10;
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// A connection to the system's logger. A message never makes the sender wait. If the logger is too
/// slow or gone, messages are lost, and their number precedes the next message that arrives.
#[derive(Debug)]
pub struct Syslog {
    tag: String,
    path: PathBuf,
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: Option<Socket>,
    lost: u64,
}

#[derive(Debug)]
enum Socket {
    Datagram(UnixDatagram),
    Stream(UnixStream),
}

impl Socket {
    fn connect(path: &Path) -> io::Result<Self> {
        let datagram = UnixDatagram::unbound()?;
        datagram.set_nonblocking(true)?;
        match datagram.connect(path) {
            Ok(()) => Ok(Self::Datagram(datagram)),
            Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Self::Stream(stream))
            }
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Datagram(socket) => socket.send(message).map(drop),
            Self::Stream(socket) => {
                // Zero bytes separate messages on a stream; a part of one would spoil the next.
                let framed = [message, &[0]].concat();
                match socket.write(&framed)? {
                    sent if sent == framed.len() => Ok(()),
                    _ => Err(io::ErrorKind::BrokenPipe.into()),
                }
            }
        }
    }
}

impl Syslog {
    /// Connects to the logger at `path` (normally [`SOCKET`]). `tag` precedes each message.
    ///
    /// # Errors
    /// There is no logger at this address.
    pub fn connect(path: &Path, tag: &str) -> io::Result<Self> {
        let socket = Socket::connect(path)?;
        Ok(Self {
            tag: tag.to_owned(),
            path: path.to_owned(),
            connection: Mutex::new(Connection {
                socket: Some(socket),
                lost: 0,
            }),
        })
    }

    /// Sends one line, without control characters.
    pub fn send(&self, level: LogLevel, line: &str) {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if connection.lost > 0 {
            let note = format!("{} messages lost", connection.lost);
            let note = self.message(LogLevel::Warn, &note);
            if self.deliver(&mut connection, note.as_bytes()).is_ok() {
                connection.lost = 0;
            }
        }
        let message = self.message(level, line);
        if connection.lost > 0 || self.deliver(&mut connection, message.as_bytes()).is_err() {
            connection.lost += 1;
        }
    }

    fn deliver(&self, connection: &mut Connection, message: &[u8]) -> io::Result<()> {
        if let Some(socket) = &mut connection.socket {
            match socket.send(message) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => connection.socket = None,
                other => return other,
            }
        }
        // The logger was restarted.
        let mut socket = Socket::connect(&self.path)?;
        let sent = socket.send(message);
        connection.socket = Some(socket);
        sent
    }

    fn message(&self, level: LogLevel, line: &str) -> String {
        let severity = match level {
            LogLevel::Error => 3,
            LogLevel::Warn => 4,
            LogLevel::Info | LogLevel::Verbose => 6,
            LogLevel::Debug | LogLevel::Trace => 7,
        };
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
        let t = LocalTime::from_unix(now);
        let month = MONTHS
            .get((t.month as usize).wrapping_sub(1))
            .unwrap_or(&"Jan");
        let mut end = line.len().min(MAX_LINE);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        format!(
            "<{}>{month} {:2} {:02}:{:02}:{:02} {}[{}]: {}",
            FACILITY | severity,
            t.day,
            t.hour,
            t.minute,
            t.second,
            self.tag,
            std::process::id(),
            line.get(..end).unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_and_loss_is_counted() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("log");
        assert!(Syslog::connect(&path, "x").is_err());
        let server = UnixDatagram::bind(&path).expect("bind");
        let log = Syslog::connect(&path, "dwarfs").expect("connect");
        let mut buffer = vec![0; 10_000];
        let mut receive = |server: &UnixDatagram| {
            let length = server.recv(&mut buffer).expect("a message");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        log.send(LogLevel::Error, "broken");
        let text = receive(&server);
        let end = format!(" dwarfs[{}]: broken", std::process::id());
        assert!(text.starts_with("<27>") && text.ends_with(&end), "{text}");
        log.send(LogLevel::Trace, &"ä".repeat(MAX_LINE));
        let text = receive(&server);
        assert!(text.starts_with("<31>") && text.len() < MAX_LINE + 100);

        // Nobody reads: what does not fit is lost, and nobody waits.
        for n in 0..1_000 {
            log.send(LogLevel::Info, &format!("{n} {}", "x".repeat(1000)));
        }
        let lost = log.connection.lock().expect("a connection").lost;
        assert!(lost > 0);
        for n in 0..1_000 - lost {
            assert!(receive(&server).contains(&format!(": {n} ")));
        }
        log.send(LogLevel::Info, "again");
        assert!(receive(&server).ends_with(&format!(": {lost} messages lost")));
        assert!(receive(&server).ends_with(": again"));

        // A logger that is started again gets the messages.
        drop(server);
        std::fs::remove_file(&path).expect("remove");
        log.send(LogLevel::Info, "nobody listens");
        let server = UnixDatagram::bind(&path).expect("bind");
        log.send(LogLevel::Info, "back");
        assert!(receive(&server).ends_with(": 1 messages lost"));
        assert!(receive(&server).ends_with(": back"));
    }

    #[test]
    fn streams_are_served_too() {
        use std::io::Read;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("log");
        let server = std::os::unix::net::UnixListener::bind(&path).expect("bind");
        let log = Syslog::connect(&path, "t").expect("connect");
        log.send(LogLevel::Warn, "one");
        drop(log);
        let mut text = String::new();
        let (mut stream, _) = server.accept().expect("a connection");
        stream.read_to_string(&mut text).expect("text");
        assert!(
            text.starts_with("<28>") && text.ends_with(": one\0"),
            "{text:?}"
        );
    }
}
