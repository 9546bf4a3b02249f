//! What a server really answered: the store above reports less than decisions need.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use chrono::DateTime;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderValue, IF_NONE_MATCH,
    RETRY_AFTER,
};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

/// Bytes of an error message of a server that are read.
const MESSAGE: usize = 64 << 10;
/// Bytes of an answer, to a request that is not for data, that are read.
const ANSWER: usize = 4 << 20;

/// Longest pause that a server gets.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

tokio::task_local! {
    /// The record of what is done now, for its requests that have none of their own: those for credentials, and those
    /// of an upload.
    static CURRENT: Record;
}

/// The last answer of a server to a request that carries this record.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    answer: Arc<Mutex<Answer>>,
    /// The object that is completed must not replace another one.
    creates: bool,
}

/// What is known of an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: Option<StatusCode>,
    /// How long the server wants to be left alone.
    pub(crate) retry_after: Option<Duration>,
    /// Length of the body, as the server states it.
    pub(crate) length: Option<u64>,
    /// The code of an error of an object store, such as `NoSuchKey`.
    pub(crate) code: Option<String>,
    /// The server has compressed the bytes, which are then not those of the object.
    pub(crate) encoded: bool,
    /// The request was not for the object itself, as one for credentials.
    pub(crate) aside: bool,
}

impl Record {
    /// For completing a new object of S3: the store is asked to refuse that if there is one. Stores that do not know this
    /// replace it.
    pub(crate) fn of_new_object() -> Self {
        Self {
            creates: true,
            ..Self::default()
        }
    }

    pub(crate) fn answer(&self) -> Answer {
        self.answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Does something whose requests have this record, unless they have one of their own.
    pub(crate) async fn of<T>(&self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.clone(), work).await
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }
}

/// A client that keeps [`Record`]s, and has these headers in each request.
pub(crate) fn observed(client: HttpClient, headers: HeaderMap) -> HttpClient {
    HttpClient::new(Observer { client, headers })
}

#[derive(Debug)]
struct Observer {
    client: HttpClient,
    headers: HeaderMap,
}

#[async_trait]
impl HttpService for Observer {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| (name.clone(), value.clone()));
        request.headers_mut().extend(headers);
        let own = request.extensions().get::<Record>().cloned();
        let for_data = request.method() == Method::GET && own.is_some();
        let aside = own.is_none();
        let record = own.or_else(|| CURRENT.try_with(Record::clone).ok());
        if let Some(record) = &record {
            record.set(Answer {
                aside,
                ..Answer::default()
            });
        }
        let response = match &record {
            Some(record) if record.creates && is_completion(&request) => {
                self.create(request).await?
            }
            _ => self.client.execute(request).await?,
        };
        let (parts, body) = response.into_parts();
        let mut answer = Answer {
            status: Some(parts.status),
            retry_after: retry_after(&parts.headers),
            length: number(&parts.headers),
            code: None,
            encoded: is_encoded(&parts.headers),
            aside,
        };
        let body = match (parts.status.is_success(), for_data) {
            (true, true) => body,
            (true, false) => {
                let text = limited(body, ANSWER, true).await?;
                // Stores have errors with status 200.
                match text.windows(7).any(|part| part == b"<Error>") {
                    true => told(&mut answer, &text),
                    false => text.into(),
                }
            }
            (false, _) => {
                let text = limited(body, MESSAGE, false).await?;
                told(&mut answer, &text)
            }
        };
        let encoded = answer.encoded && parts.status.is_success() && for_data;
        if let Some(record) = record {
            record.set(answer);
        }
        if encoded {
            let what = std::io::Error::other("the server has compressed the answer");
            return Err(HttpError::new(HttpErrorKind::Decode, what));
        }
        if for_data && !is_range_sound(&parts.headers) {
            let what = std::io::Error::other("the server sends a range that cannot be");
            return Err(HttpError::new(HttpErrorKind::Decode, what));
        }
        Ok(HttpResponse::from_parts(parts, body))
    }
}

impl Observer {
    /// Lets a store complete an object if there is none. The signature of the request is not about this header. A store
    /// that does not implement it says so, and does without.
    async fn create(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let plain = request.clone();
        let mut request = request;
        let any = HeaderValue::from_static("*");
        request.headers_mut().insert(IF_NONE_MATCH, any);
        let response = self.client.execute(request).await?;
        match response.status() {
            StatusCode::NOT_IMPLEMENTED => self.client.execute(plain).await,
            _ => Ok(response),
        }
    }
}

/// Whether a request completes an object of several parts.
fn is_completion(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let mut names = query.split('&').filter_map(|pair| pair.split('=').next());
    request.method() == Method::POST && names.any(|name| name == "uploadId")
}

/// Notes the code of an error. What is left of its text is that code: the rest may hold secrets, and would be part of
/// messages.
fn told(answer: &mut Answer, text: &[u8]) -> HttpResponseBody {
    answer.code = error_code(text);
    let code = answer.code.as_deref().unwrap_or_default();
    format!("<Error><Code>{code}</Code></Error>").into()
}

/// Whether the ends of the range in an answer are in order, and the second one has a successor.
fn is_range_sound(headers: &HeaderMap) -> bool {
    let Some(range) = text(headers, CONTENT_RANGE).and_then(|text| text.strip_prefix("bytes "))
    else {
        return true;
    };
    let ends = range.split(['-', '/']).map(|end| end.trim().parse::<u64>());
    match ends.take(2).collect::<Vec<_>>()[..] {
        [Ok(start), Ok(last)] => start <= last && last < u64::MAX,
        // Refused by whoever needs it.
        _ => true,
    }
}

/// The first bytes of a body. With `whole`, a longer body is an error.
async fn limited(
    mut body: HttpResponseBody,
    limit: usize,
    whole: bool,
) -> Result<Bytes, HttpError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        let room = limit - bytes.len();
        if data.len() > room {
            if whole {
                let what = std::io::Error::other("the answer of the server is too long");
                return Err(HttpError::new(HttpErrorKind::Decode, what));
            }
            bytes.extend_from_slice(data.get(..room).unwrap_or_default());
            break;
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn text(headers: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn number(headers: &HeaderMap) -> Option<u64> {
    text(headers, CONTENT_LENGTH)?.parse().ok()
}

fn is_encoded(headers: &HeaderMap) -> bool {
    text(headers, CONTENT_ENCODING).is_some_and(|coding| {
        !["", "identity", "aws-chunked"].contains(&coding.to_ascii_lowercase().as_str())
    })
}

/// The pause that a server asks for, in seconds or with a date: an hour at most.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text(headers, RETRY_AFTER)?;
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds).min(LONGEST_PAUSE));
    }
    let date = SystemTime::from(DateTime::parse_from_rfc2822(text).ok()?);
    let pause = date.duration_since(SystemTime::now()).unwrap_or_default();
    Some(pause.min(LONGEST_PAUSE))
}

/// The code in an XML error of an object store. Only short words of letters and digits count.
fn error_code(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let sane = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (sane && !code.is_empty()).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that may know no conditions.
    #[derive(Debug)]
    struct Store {
        knows: bool,
        conditions: Arc<Mutex<Vec<Option<HeaderValue>>>>,
    }

    #[async_trait]
    impl HttpService for Store {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let condition = request.headers().get(IF_NONE_MATCH).cloned();
            let refused = condition.is_some() && !self.knows;
            self.conditions.lock().unwrap().push(condition);
            let status = match refused {
                true => StatusCode::NOT_IMPLEMENTED,
                false => StatusCode::OK,
            };
            let mut response = HttpResponse::new(String::new().into());
            *response.status_mut() = status;
            Ok(response)
        }
    }

    #[test]
    fn only_the_end_of_a_new_object_is_conditional() {
        let any = || Some(HeaderValue::from_static("*"));
        for knows in [true, false] {
            let conditions = Arc::default();
            let store = Store {
                knows,
                conditions: Arc::clone(&conditions),
            };
            let observer = observed(HttpClient::new(store), HeaderMap::new());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            let send = |method: &Method, uri: &str, record: Record| {
                let body = String::from("text").into();
                let request = http::Request::builder().method(method).uri(uri);
                let sent = observer.execute(request.body(body).unwrap());
                let response = runtime.block_on(record.of(sent)).unwrap();
                assert_eq!(response.status(), StatusCode::OK);
                std::mem::take(&mut *conditions.lock().unwrap())
            };
            let (end, new) = ("http://host/key?uploadId=7", Record::of_new_object);
            let found = send(&Method::POST, end, new());
            match knows {
                true => assert_eq!(found, [any()]),
                false => assert_eq!(found, [any(), None]),
            }
            assert_eq!(send(&Method::POST, end, Record::default()), [None]);
            for (method, uri) in [
                (Method::POST, "http://host/key?uploads"),
                (Method::PUT, "http://host/key?partNumber=1&uploadId=7"),
                (Method::DELETE, end),
            ] {
                assert_eq!(send(&method, uri, new()), [None], "{method} {uri}");
            }
        }
    }

    #[test]
    fn pauses_are_seconds_or_dates() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        for far in ["Fri, 31 Dec 9999 23:59:59 GMT", "18446744073709551615"] {
            assert_eq!(of(far), Some(LONGEST_PAUSE), "{far}");
        }
        for wrong in ["", "-1", "soon", "Sun, 36 Nov 1994 08:49:37 GMT"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let soon = DateTime::<chrono::Utc>::from(SystemTime::now() + Duration::from_secs(60));
        let pause = of(&soon.to_rfc2822()).unwrap();
        assert!((50..=60).contains(&pause.as_secs()), "{pause:?}");
    }

    #[test]
    fn ranges_without_end_are_refused() {
        for (range, sound) in [
            ("bytes 0-18446744073709551615/5", false),
            ("bytes 5-4/10", false),
            ("bytes 0-18446744073709551614/5", true),
            ("bytes 3-4/*", true),
            ("nothing", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, range.parse().unwrap());
            assert_eq!(is_range_sound(&headers), sound, "{range}");
        }
    }

    #[test]
    fn codes_of_errors_are_short_words() {
        assert_eq!(
            error_code(b"<Error><Code>NoSuchKey</Code>").as_deref(),
            Some("NoSuchKey")
        );
        for wrong in ["", "<Code>", "<Code></Code>", "<Code>a b</Code>"] {
            assert_eq!(error_code(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
