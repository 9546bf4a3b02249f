//! A web server inside the process of a test: objects with ranges and tags, counts, and faults on request.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What goes wrong with one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebFault {
    /// The connection ends after this many bytes of the body.
    Cut(usize),
    /// An answer with this status and these headers, without the object.
    Status(u16, Vec<(&'static str, String)>),
    /// The length in the head is this much larger than the body. Then the connection ends.
    TooShort(u64),
    /// `Content-Range` is this many bytes too high.
    WrongRange(u64),
    /// A body of so many more bytes than the range has, and that length in the head.
    TooLong(usize),
    /// A body that claims to be compressed.
    Encoded,
    /// Nothing is sent after this many bytes of the body, until the server ends or [`WebServer::release`].
    Stall(usize),
    /// The whole object, with status 200.
    Whole,
    /// The connection ends without an answer.
    Refuse,
}

/// A request that a server got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebRequest {
    /// Such as `GET`.
    pub method: String,
    /// With the query.
    pub target: String,
    /// With names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Bytes of the body that were sent.
    pub sent: u64,
    /// When the server got the request, and when it began to answer, in counted events.
    pub lasted: Range<u64>,
}

impl WebRequest {
    /// The first byte that it asks for, if it says that.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        range.split('-').next()?.parse().ok()
    }

    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// How many requests came one after the other: the longest row in which each came after the answer to the one before
/// had begun. That is how often somebody who sent them waited for a round trip.
#[must_use]
pub fn round_trips(requests: &[WebRequest]) -> usize {
    let mut sorted: Vec<&WebRequest> = requests.iter().collect();
    sorted.sort_by_key(|request| request.lasted.start);
    let mut depths: Vec<usize> = Vec::new();
    for (number, request) in sorted.iter().enumerate() {
        let before = sorted.iter().take(number).zip(&depths);
        let answered = before.filter(|(other, _)| other.lasted.end < request.lasted.start);
        let depth = answered.map(|(_, depth)| *depth).max().unwrap_or(0);
        depths.push(depth + 1);
    }
    depths.into_iter().max().unwrap_or(0)
}

#[derive(Debug, Default)]
struct ServerState {
    /// Counts events.
    clock: u64,
    objects: BTreeMap<String, Object>,
    faults: VecDeque<WebFault>,
    /// What requests meet whose first byte is in a range.
    faulty: Vec<(Range<u64>, WebFault)>,
    requests: Vec<WebRequest>,
    open: Vec<TcpStream>,
    connections: usize,
    running: usize,
    most: usize,
    /// A directory whose files are objects, too.
    directory: Option<PathBuf>,
    /// Whether objects have tags.
    tags: bool,
    whole: bool,
    latency: Duration,
}

#[derive(Debug, Clone)]
struct Object {
    bytes: Arc<[u8]>,
    tag: String,
}

#[derive(Debug, Default)]
struct SharedServer {
    state: Mutex<ServerState>,
    released: Condvar,
    over: AtomicBool,
}

impl SharedServer {
    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server on a port of this machine. It ends when it is dropped.
#[derive(Debug)]
pub struct WebServer {
    shared: Arc<SharedServer>,
    address: SocketAddr,
    /// The start of URLs, up to the port.
    origin: &'static str,
}

impl WebServer {
    /// A server without objects.
    ///
    /// # Errors
    /// There is no port.
    pub fn start() -> io::Result<Self> {
        Self::with("http://127.0.0.1", |shared, stream| {
            stream.set_nodelay(true)?;
            serve(shared, stream)
        })
    }

    /// A server without objects that speaks TLS, for clients that trust [`WebServer::AUTHORITY`].
    ///
    /// # Errors
    /// There is no port.
    #[cfg(feature = "tls")]
    pub fn start_tls() -> io::Result<Self> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let pem = io::Error::other::<rustls::pki_types::pem::Error>;
        let certificate = CertificateDer::from_pem_slice(include_bytes!("tls/server.pem"));
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/server.key"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.map_err(pem)?], key.map_err(pem)?)
            .map_err(io::Error::other)?;
        let config = Arc::new(config);
        Self::with("https://localhost", move |shared, stream| {
            stream.set_nodelay(true)?;
            let session = rustls::ServerConnection::new(Arc::clone(&config));
            let session = session.map_err(io::Error::other)?;
            serve(shared, rustls::StreamOwned::new(session, stream))
        })
    }

    /// The certificate of the authority that signed that of the server, as PEM.
    #[cfg(feature = "tls")]
    pub const AUTHORITY: &'static str = include_str!("tls/authority.pem");

    fn with(
        origin: &'static str,
        serve: impl Fn(&SharedServer, TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let serve = Arc::new(serve);
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(SharedServer::default());
        shared.lock().tags = true;
        let served = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("web".into())
            .spawn(move || {
                for stream in listener.incoming() {
                    if served.over.load(Ordering::SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    served.lock().connections += 1;
                    if let Ok(copy) = stream.try_clone() {
                        served.lock().open.push(copy);
                    }
                    let (shared, serve) = (Arc::clone(&served), Arc::clone(&serve));
                    // A client that is gone ends its thread.
                    std::thread::spawn(move || {
                        let closed = stream.try_clone();
                        drop(serve(&shared, stream));
                        if let Ok(stream) = closed {
                            let _ = stream.shutdown(Shutdown::Both);
                        }
                    });
                }
            })?;
        Ok(Self {
            shared,
            address,
            origin,
        })
    }

    /// Puts an object at a path, which begins with a slash. One that is there is replaced, and gets another tag.
    pub fn put(&self, path: &str, bytes: impl Into<Arc<[u8]>>) {
        let mut state = self.shared.lock();
        let version = state.objects.get(path).map_or(1, |object| {
            object
                .tag
                .trim_matches('"')
                .trim_start_matches('v')
                .parse()
                .unwrap_or(0)
                + 1
        });
        let object = Object {
            bytes: bytes.into(),
            tag: format!("\"v{version}\""),
        };
        state.objects.insert(path.to_owned(), object);
    }

    /// The files of a directory are objects, too, as they are at each request.
    pub fn serve_directory(&self, path: &Path) {
        self.shared.lock().directory = Some(path.to_owned());
    }

    /// The URL of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}:{}{path}", self.origin, self.address.port())
    }

    /// Where the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next requests meet these faults, one each.
    pub fn fail(&self, faults: impl IntoIterator<Item = WebFault>) {
        self.shared.lock().faults.extend(faults);
    }

    /// All requests whose first byte is in a range meet a fault.
    pub fn fail_in(&self, range: Range<u64>, fault: WebFault) {
        self.shared.lock().faulty.push((range, fault));
    }

    /// No request meets a fault, and stalled ones go on.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        state.faults.clear();
        state.faulty.clear();
        drop(state);
        self.shared.released.notify_all();
    }

    /// Objects have no tags from here on.
    pub fn without_tags(&self) {
        self.shared.lock().tags = false;
    }

    /// Ranges are ignored from here on.
    pub fn without_ranges(&self) {
        self.shared.lock().whole = true;
    }

    /// Each answer comes this much later.
    pub fn delay(&self, latency: Duration) {
        self.shared.lock().latency = latency;
    }

    /// The requests so far. The list begins anew.
    pub fn take_requests(&self) -> Vec<WebRequest> {
        std::mem::take(&mut self.shared.lock().requests)
    }

    /// The number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// The largest number of requests that were answered at the same time.
    #[must_use]
    pub fn most_at_once(&self) -> usize {
        self.shared.lock().most
    }

    /// Ends all connections. New ones are accepted.
    pub fn hang_up(&self) {
        for stream in self.shared.lock().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.released.notify_all();
        self.hang_up();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers the requests of a connection.
fn serve(shared: &SharedServer, stream: impl Read + Write) -> io::Result<()> {
    let mut input = BufReader::new(stream);
    while let Some(request) = read_request(&mut input)? {
        let (fault, latency, number) = {
            let mut state = shared.lock();
            state.clock += 1;
            let mut noted = request.clone();
            noted.lasted = state.clock..u64::MAX;
            state.requests.push(noted);
            state.running += 1;
            state.most = state.most.max(state.running);
            let meets = |(range, _): &&(Range<u64>, WebFault)| {
                request.first().is_some_and(|first| range.contains(&first))
            };
            let faulty = state.faulty.iter().find(meets);
            let faulty = faulty.map(|(_, fault)| fault.clone());
            (
                state.faults.pop_front().or(faulty),
                state.latency,
                state.requests.len() - 1,
            )
        };
        std::thread::sleep(latency);
        {
            let mut state = shared.lock();
            state.clock += 1;
            let clock = state.clock;
            if let Some(noted) = state
                .requests
                .get_mut(number)
                .filter(|noted| noted.target == request.target)
            {
                noted.lasted.end = clock;
            }
        }
        let sent = answer(shared, input.get_mut(), &request, fault);
        let mut state = shared.lock();
        state.running -= 1;
        let (sent, go_on) = sent.unwrap_or((0, false));
        if let Some(noted) = state
            .requests
            .get_mut(number)
            .filter(|noted| noted.target == request.target)
        {
            noted.sent = sent;
        }
        if !go_on {
            break;
        }
    }
    Ok(())
}

fn read_request(input: &mut impl BufRead) -> io::Result<Option<WebRequest>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_ascii_whitespace();
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (method, target) = (word(), word());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned())
            }
            None => break,
        };
    }
    let length = headers
        .get("content-length")
        .and_then(|length: &String| length.parse().ok());
    io::copy(&mut input.take(length.unwrap_or(0)), &mut io::sink())?;
    Ok(Some(WebRequest {
        method,
        target,
        headers,
        sent: 0,
        lasted: 0..0,
    }))
}

/// The range of a header `bytes=A-B`, `bytes=A-` or `bytes=-N`.
fn range_of(text: &str, size: u64) -> Option<Range<u64>> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (from, to) {
        ("", last) => size.saturating_sub(last.parse().ok()?)..size,
        (from, "") => from.parse().ok()?..size,
        (from, to) => from.parse().ok()?..to.parse::<u64>().ok()?.saturating_add(1).min(size),
    };
    (range.start < range.end).then_some(range)
}

/// Sends an answer. Returns the bytes of the body that were sent, and whether the connection goes on.
fn answer(
    shared: &SharedServer,
    stream: &mut impl Write,
    request: &WebRequest,
    fault: Option<WebFault>,
) -> io::Result<(u64, bool)> {
    if let Some(WebFault::Refuse) = fault {
        return Ok((0, false));
    }
    if let Some(WebFault::Status(status, headers)) = &fault {
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        write!(
            stream,
            "HTTP/1.1 {status} Fault\r\n{headers}Content-Length: 0\r\n\r\n"
        )?;
        return Ok((0, true));
    }
    let path = request.target.split('?').next().unwrap_or_default();
    let (object, directory, tags, whole) = {
        let state = shared.lock();
        let object = state.objects.get(path).cloned();
        (object, state.directory.clone(), state.tags, state.whole)
    };
    let object = object.or_else(|| {
        let name = path.trim_start_matches('/');
        let bytes = std::fs::read(directory?.join(name)).ok()?;
        Some(Object {
            tag: format!("\"{}\"", bytes.len()),
            bytes: bytes.into(),
        })
    });
    let Some(object) = object else {
        write!(
            stream,
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        )?;
        return Ok((0, true));
    };
    if tags
        && request
            .header("if-match")
            .is_some_and(|tag| tag != object.tag)
    {
        write!(
            stream,
            "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
        )?;
        return Ok((0, true));
    }
    if tags
        && request
            .header("if-none-match")
            .is_some_and(|tag| tag == object.tag)
    {
        write!(
            stream,
            "HTTP/1.1 304 Not Modified\r\nETag: {}\r\n\r\n",
            object.tag
        )?;
        return Ok((0, true));
    }
    let size = object.bytes.len() as u64;
    let wanted = request
        .header("range")
        .filter(|_| !whole && fault != Some(WebFault::Whole));
    let range = wanted.and_then(|text| range_of(text, size));
    if wanted.is_some() && range.is_none() {
        write!(
            stream,
            "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n"
        )?;
        return Ok((0, true));
    }
    let (start, end) = range
        .as_ref()
        .map_or((0, size), |range| (range.start, range.end));
    let mut body = object.bytes[start as usize..end as usize].to_vec();
    let mut headers = String::new();
    if range.is_some() {
        let shift = match fault {
            Some(WebFault::WrongRange(shift)) => shift,
            _ => 0,
        };
        headers += &format!(
            "Content-Range: bytes {}-{}/{size}\r\n",
            start + shift,
            end - 1 + shift
        );
    }
    if tags {
        headers += &format!("ETag: {}\r\n", object.tag);
    }
    let (mut length, mut send, mut go_on) = (body.len() as u64, body.len(), true);
    match &fault {
        Some(WebFault::Cut(bytes)) => (send, go_on) = (send.min(*bytes), false),
        Some(WebFault::TooShort(bytes)) => (length, go_on) = (length + bytes, false),
        Some(WebFault::TooLong(bytes)) => {
            body.resize(body.len() + bytes, 0x5a);
            (length, send) = (body.len() as u64, body.len());
        }
        Some(WebFault::Encoded) => headers += "Content-Encoding: gzip\r\n",
        _ => {}
    }
    let status = if range.is_some() {
        "206 Partial Content"
    } else {
        "200 OK"
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}Accept-Ranges: bytes\r\nContent-Length: {length}\r\n\r\n"
    )?;
    if request.method == "HEAD" {
        return Ok((0, true));
    }
    if let Some(WebFault::Stall(bytes)) = fault {
        let (first, rest) = body.split_at(bytes.min(body.len()));
        stream.write_all(first)?;
        stream.flush()?;
        let state = shared.lock();
        drop(shared.released.wait(state));
        stream.write_all(rest)?;
    } else {
        stream.write_all(&body[..send])?;
    }
    stream.flush()?;
    Ok((send as u64, go_on))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(server: &WebServer, head: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "GET {head}\r\n\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        // A cut connection is an error with some of the bytes.
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn round_trips_are_counted() {
        let request = |lasted| WebRequest {
            method: String::new(),
            target: String::new(),
            headers: BTreeMap::new(),
            sent: 0,
            lasted,
        };
        let row: Vec<_> = (0..5).map(|at| request(2 * at..2 * at + 1)).collect();
        assert_eq!(round_trips(&row), 5);
        let wave: Vec<_> = (0..5).map(|at| request(at..at + 10)).collect();
        assert_eq!(round_trips(&wave), 1);
        let two = [request(0..3), request(1..9), request(4..6), request(7..8)];
        assert_eq!((round_trips(&two), round_trips(&[])), (3, 0));
    }

    #[test]
    fn ranges_tags_and_faults() {
        let server = WebServer::start().unwrap();
        server.put("/a", *b"0123456789");
        for (range, body) in [
            ("0-3", "0123"),
            ("-2", "89"),
            ("7-", "789"),
            ("-99", "0123456789"),
        ] {
            let text = get(&server, &format!("/a HTTP/1.1\r\nRange: bytes={range}"));
            assert!(
                text.starts_with("HTTP/1.1 206") && text.ends_with(&format!("\r\n\r\n{body}")),
                "{text}"
            );
        }
        assert!(get(&server, "/a HTTP/1.1").starts_with("HTTP/1.1 200"));
        assert!(get(&server, "/b HTTP/1.1").starts_with("HTTP/1.1 404"));
        assert!(get(&server, "/a HTTP/1.1\r\nRange: bytes=10-").starts_with("HTTP/1.1 416"));
        assert!(get(&server, "/a HTTP/1.1\r\nIf-Match: \"v1\"").starts_with("HTTP/1.1 200"));
        server.put("/a", *b"other");
        assert!(get(&server, "/a HTTP/1.1\r\nIf-Match: \"v1\"").starts_with("HTTP/1.1 412"));
        server.fail([
            WebFault::Cut(2),
            WebFault::Status(503, vec![("Retry-After", "1".into())]),
        ]);
        assert!(get(&server, "/a HTTP/1.1").ends_with("\r\n\r\not"));
        assert!(get(&server, "/a HTTP/1.1").contains("Retry-After: 1\r\n"));
        let requests = server.take_requests();
        assert_eq!(requests.len(), 11);
        assert_eq!(requests[0].sent, 4);
        assert_eq!(requests[0].header("range"), Some("bytes=0-3"));
    }
}
