//! What a server really answered: the store above reports less than decisions need.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, RETRY_AFTER};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};

/// Bytes of an error message of a server that are read.
const MESSAGE: usize = 64 << 10;
/// Bytes of an answer, to a request that is not for data, that are read.
const ANSWER: usize = 4 << 20;

/// The last answer of a server to a request that carries this record.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Answer>>);

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
}

impl Record {
    pub(crate) fn answer(&self) -> Answer {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, answer: Answer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }
}

/// Makes clients that keep [`Record`]s.
#[derive(Debug, Default)]
pub(crate) struct Observing(ReqwestConnector);

impl HttpConnector for Observing {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Observer(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct Observer(HttpClient);

#[async_trait]
impl HttpService for Observer {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let record = request.extensions().get::<Record>().cloned();
        let for_data = request.method() == Method::GET && record.is_some();
        let response = self.0.execute(request).await?;
        let (parts, body) = response.into_parts();
        let mut answer = Answer {
            status: Some(parts.status),
            retry_after: retry_after(&parts.headers),
            length: number(&parts.headers),
            code: None,
            encoded: is_encoded(&parts.headers),
        };
        let body = match (parts.status.is_success(), for_data) {
            (true, true) => body,
            (true, false) => limited(body, ANSWER, true).await?.into(),
            (false, _) => {
                let text = limited(body, MESSAGE, false).await?;
                answer.code = error_code(&text);
                text.into()
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
        Ok(HttpResponse::from_parts(parts, body))
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
    text(headers, CONTENT_ENCODING)
        .is_some_and(|coding| !["", "identity", "aws-chunked"].contains(&coding))
}

/// The pause that a server asks for: seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text(headers, RETRY_AFTER)?;
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = parse_date(text)?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// A date as in `Sun, 06 Nov 1994 08:49:37 GMT`.
fn parse_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, day, month, year, clock, "GMT"] = words[..] else {
        return None;
    };
    let month = MONTHS.iter().position(|name| *name == month)?;
    let (day, year) = (day.parse::<u64>().ok()?, year.parse::<u64>().ok()?);
    let clock: Vec<u64> = clock
        .split(':')
        .filter_map(|part| part.parse().ok())
        .collect();
    let [hour, minute, second] = clock[..] else {
        return None;
    };
    if !(1970..=9999).contains(&year)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let years: u64 = (1970..year).map(|year| 365 + u64::from(leap(year))).sum();
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let days = years + lengths[..month].iter().sum::<u64>() + day - 1;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
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

    #[test]
    fn pauses_are_seconds_or_dates() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let far = of("Fri, 31 Dec 9999 23:59:59 GMT").unwrap();
        assert!(far > Duration::from_secs(1 << 32), "{far:?}");
        for wrong in [
            "",
            "-1",
            "soon",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 06 Nov 1994 8:49 GMT",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let date = parse_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let since = date.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_secs(), 784_111_777);
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
