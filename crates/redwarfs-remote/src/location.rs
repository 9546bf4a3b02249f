//! URLs of objects, and the stores that have them.

use std::io;
use std::sync::Arc;

use base64ct::{Base64, Encoding as _};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue};
use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use redwarfs_io::place;
use url::Url;

use crate::aws_files;
use crate::client::{Connecting, Use};
use crate::failure::without_secrets;
use crate::meter::Meter;
use crate::netrc;
use crate::runtime::Threads;

/// An object of a server.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    /// Its URL without secrets.
    pub(crate) shown: String,
    /// The server that the environment names, for schemes without one in the URL.
    pub(crate) server: String,
    /// Whether the server can be asked for the last bytes without knowing the length.
    pub(crate) suffixes: bool,
    /// Whether objects can be written there.
    pub(crate) writable: bool,
    /// What requests measure.
    pub(crate) meter: Arc<Meter>,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Object({})", self.shown)
    }
}

impl Object {
    /// The object of a URL, with the credentials that the environment has for it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it is no URL of an object, or the settings in the environment are wrong.
    pub(crate) fn of(url: &str, purpose: Use) -> io::Result<Self> {
        let shown = place::shown(url);
        let invalid =
            |what: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{shown}: {what}"));
        let parsed = Url::parse(url).map_err(|e| invalid(e.to_string()))?;
        let threads = Threads::get()?;
        let built = match parsed.scheme() {
            "http" | "https" => Self::web(parsed, &shown, &threads),
            scheme => {
                let bucket = parsed.host_str().filter(|host| !host.is_empty());
                let bucket = bucket.ok_or_else(|| invalid(String::from("no bucket")))?;
                if parsed.query().is_some()
                    || !parsed.username().is_empty()
                    || parsed.port().is_some()
                {
                    return Err(invalid(format!("expected {scheme}://BUCKET/KEY")));
                }
                let path =
                    Path::from_url_path(parsed.path()).map_err(|e| invalid(e.to_string()))?;
                if path.as_ref().is_empty() {
                    return Err(invalid(format!("no key, expected {scheme}://BUCKET/KEY")));
                }
                let store = match scheme {
                    "s3" => s3(bucket, purpose, &threads),
                    "gs" => google(bucket, purpose, &threads),
                    "az" => azure(bucket, purpose, &threads),
                    _ => return Err(invalid(format!("unknown scheme {scheme}"))),
                };
                store.map(|(store, server)| Self {
                    store,
                    server,
                    path,
                    shown: shown.clone(),
                    suffixes: scheme != "az",
                    writable: true,
                    meter: Arc::default(),
                })
            }
        };
        built.map_err(|e| invalid(without_secrets(&e.to_string())))
    }

    /// A file of a web server. The whole URL is the base, so that its query stays, and its path is sent as it is.
    fn web(mut url: Url, shown: &str, threads: &Threads) -> object_store::Result<Self> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let login = match url.username() {
            "" => netrc::login(url.host_str().unwrap_or_default()),
            user => Some((decoded(user), decoded(url.password().unwrap_or_default()))),
        };
        if let Some((user, password)) = login {
            let word = Base64::encode_string(format!("{user}:{password}").as_bytes());
            if let Ok(mut value) = HeaderValue::try_from(format!("Basic {word}")) {
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
        }
        // Neither can fail for a URL with a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        let plain = url.scheme() == "http";
        let store = HttpBuilder::new()
            .with_url(url)
            .with_client_options(Use::Read.options(plain))
            .with_retry(Use::Read.retries())
            .with_http_connector(connecting(threads, Use::Read, headers))
            .build()?;
        Ok(Self {
            store: Arc::new(store),
            path: Path::default(),
            shown: shown.to_owned(),
            server: String::new(),
            suffixes: true,
            writable: false,
            meter: Arc::default(),
        })
    }
}

/// Whether the text of a setting means yes.
fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| {
        ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
    })
}

fn s3(
    bucket: &str,
    purpose: Use,
    threads: &Threads,
) -> object_store::Result<(Arc<dyn ObjectStore>, String)> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let profile = aws_files::Profile::load();
    let unset = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_none();
    if unset(&builder, AmazonS3ConfigKey::AccessKeyId)
        && let (Some(id), Some(key)) = (
            profile.get("aws_access_key_id"),
            profile.get("aws_secret_access_key"),
        )
    {
        builder = builder.with_access_key_id(id).with_secret_access_key(key);
        if let Some(token) = profile.get("aws_session_token") {
            builder = builder.with_token(token);
        }
    }
    if unset(&builder, AmazonS3ConfigKey::Region)
        && let Some(region) = profile.get("region")
    {
        builder = builder.with_region(region);
    }
    if unset(&builder, AmazonS3ConfigKey::Endpoint)
        && unset(&builder, AmazonS3ConfigKey::S3Endpoint)
        && let Some(endpoint) = profile.get("endpoint_url")
    {
        builder = builder.with_endpoint(endpoint);
    }
    let sources = [
        AmazonS3ConfigKey::AccessKeyId,
        AmazonS3ConfigKey::WebIdentityTokenFile,
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
    ];
    if is_set("AWS_EC2_METADATA_DISABLED") && sources.into_iter().all(|key| unset(&builder, key)) {
        // There are no credentials, and no place to ask for some.
        builder = builder.with_skip_signature(true);
    }
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
        .into_iter()
        .find_map(|key| builder.get_config_value(&key));
    let plain = endpoint
        .as_ref()
        .is_some_and(|url| url.starts_with("http://"));
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
    let server = server_of([endpoint, region]);
    let store = builder
        .with_client_options(purpose.options(plain || is_set("AWS_ALLOW_HTTP")))
        .with_retry(purpose.retries())
        .with_http_connector(connecting(threads, purpose, HeaderMap::new()))
        .build()?;
    Ok((Arc::new(store), server))
}

fn connecting(threads: &Threads, purpose: Use, headers: HeaderMap) -> Connecting {
    Connecting {
        threads: threads.clone(),
        purpose,
        headers,
    }
}

/// What says which server is asked.
fn server_of<const N: usize>(settings: [Option<String>; N]) -> String {
    settings.map(Option::unwrap_or_default).join(" ")
}

fn google(
    bucket: &str,
    purpose: Use,
    threads: &Threads,
) -> object_store::Result<(Arc<dyn ObjectStore>, String)> {
    let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
    let server = server_of([builder.get_config_value(&GoogleConfigKey::BaseUrl)]);
    let store = builder
        .with_client_options(purpose.options(is_set("GOOGLE_ALLOW_HTTP")))
        .with_retry(purpose.retries())
        .with_http_connector(connecting(threads, purpose, HeaderMap::new()))
        .build()?;
    Ok((Arc::new(store), server))
}

fn azure(
    container: &str,
    purpose: Use,
    threads: &Threads,
) -> object_store::Result<(Arc<dyn ObjectStore>, String)> {
    let builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let plain = endpoint
        .as_ref()
        .is_some_and(|url| url.starts_with("http://"))
        || is_set("AZURE_ALLOW_HTTP");
    let server = server_of([
        endpoint,
        builder.get_config_value(&AzureConfigKey::AccountName),
        builder.get_config_value(&AzureConfigKey::UseEmulator),
    ]);
    let store = builder
        .with_client_options(purpose.options(plain))
        .with_retry(purpose.retries())
        .with_http_connector(connecting(threads, purpose, HeaderMap::new()))
        .build()?;
    Ok((Arc::new(store), server))
}

/// Text of a URL without its percent signs.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_understood_or_refused() {
        for url in ["http://h/a?b=c", "https://h:8/a%20b"] {
            let object = Object::of(url, Use::Read).unwrap();
            assert!(object.path.as_ref().is_empty() && !object.writable, "{url}");
        }
        for (url, cause) in [
            ("s3://bucket", "no key"),
            ("s3://bucket/", "no key"),
            ("s3:///key", "no bucket"),
            ("s3://bucket/key?version=1", "expected s3://BUCKET/KEY"),
            ("gs://user@bucket/key", "expected gs://BUCKET/KEY"),
            ("ftp://host/a", "unknown scheme"),
            ("http://", "empty host"),
        ] {
            let e = Object::of(url, Use::Read).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{url}");
            assert!(e.to_string().contains(cause), "{url}: {e}");
        }
    }

    #[test]
    fn secrets_are_in_no_text() {
        let object =
            Object::of("http://someone:hidden@host:1/a?signature=hidden", Use::Read).unwrap();
        let texts = [format!("{object:?}"), object.shown.clone()];
        for text in texts {
            assert!(
                !text.contains("hidden") && !text.contains("someone"),
                "{text}"
            );
        }
        let e = Object::of("http://someone:hidden@:1/a?hidden", Use::Read).unwrap_err();
        assert!(!format!("{e} {e:?}").contains("hidden"), "{e}");
    }

    #[test]
    fn passwords_are_decoded_whole() {
        assert_eq!(decoded("a%40b+c%"), "a@b+c%");
        assert_eq!(decoded("a&b=c;d"), "a&b=c;d");
    }
}
