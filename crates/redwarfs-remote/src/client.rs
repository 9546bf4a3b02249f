//! The clients of this process: all objects of a server have the connections of one client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use object_store::client::{HttpClient, HttpConnector};
use object_store::{ClientConfigKey, ClientOptions, RetryConfig};
use tokio::runtime::Handle;

use crate::certificates::SystemCertificates;
use crate::observer::observed;
use crate::resolver::SystemResolver;
use crate::runtime::Threads;

/// How long making a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// The same for servers that give this machine its credentials, where a store wants that: they answer at once, or are not there.
const NEAR: Duration = Duration::from_secs(1);
const IS_NEAR: &str = "1s";

/// How long sending one part of an object may take.
const SENDING: Duration = Duration::from_secs(300);

/// Our name in requests.
const AGENT: &str = concat!("redwarfs/", env!("CARGO_PKG_VERSION"));

/// What an object is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Use {
    /// Options for a store. Its clients are those of [`Connecting`].
    pub(crate) fn options(self, plain: bool) -> ClientOptions {
        ClientOptions::new()
            .with_allow_http(plain)
            .with_connect_timeout(CONNECT)
    }

    /// How long a request may take. Reading has the limits of the caller.
    fn timeout(self) -> Option<Duration> {
        match self {
            Self::Read => None,
            Self::Write => Some(SENDING),
        }
    }

    /// Reading has its own rules for more attempts, which know what was received. Writing has those of the store.
    pub(crate) fn retries(self) -> RetryConfig {
        match self {
            Self::Read => RetryConfig {
                max_retries: 0,
                ..RetryConfig::default()
            },
            Self::Write => RetryConfig::default(),
        }
    }
}

/// In what clients differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ClientSettings {
    /// Whether connections without TLS are allowed.
    plain: bool,
    connect: Duration,
    timeout: Option<Duration>,
}

/// The clients. They belong to a runtime.
#[derive(Debug)]
pub(crate) struct Clients {
    made: Mutex<HashMap<ClientSettings, HttpClient>>,
    certificates: Arc<SystemCertificates>,
}

impl Clients {
    pub(crate) fn new() -> Self {
        Self {
            made: Mutex::default(),
            certificates: SystemCertificates::new(),
        }
    }

    fn get(&self, settings: ClientSettings, runtime: &Handle) -> object_store::Result<HttpClient> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = made.get(&settings) {
            return Ok(client.clone());
        }
        let client = self.make(settings)?;
        made.insert(settings, client.clone());
        if !settings.plain {
            let certificates = Arc::clone(&self.certificates);
            // While the connection is made. Whoever needs them gets the error.
            runtime.spawn_blocking(move || {
                let _ = certificates.load();
            });
        }
        Ok(client)
    }

    /// A client that does not tell a server by which URL another one sent it there: the query may be a signature.
    fn make(&self, settings: ClientSettings) -> object_store::Result<HttpClient> {
        let failed =
            |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
                store: "web",
                source,
            };
        let tls = self.certificates.config().map_err(|e| failed(e.into()))?;
        let mut builder = reqwest::Client::builder()
            .user_agent(AGENT)
            .connect_timeout(settings.connect)
            .https_only(!settings.plain)
            .http1_only()
            .referer(false)
            .dns_resolver(SystemResolver)
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .tls_backend_preconfigured(tls);
        if let Some(timeout) = settings.timeout {
            builder = builder.timeout(timeout);
        }
        let client = builder.build().map_err(|e| failed(e.into()))?;
        Ok(HttpClient::new(client))
    }
}

/// Gives a store the clients of the process.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) threads: Threads,
    pub(crate) purpose: Use,
    /// In each request.
    pub(crate) headers: HeaderMap<HeaderValue>,
}

impl HttpConnector for Connecting {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let option = |key| options.get_config_value(&key);
        let is_near = option(ClientConfigKey::ConnectTimeout).as_deref() == Some(IS_NEAR);
        let settings = ClientSettings {
            plain: option(ClientConfigKey::AllowHttp).as_deref() == Some("true"),
            connect: if is_near { NEAR } else { CONNECT },
            timeout: self.purpose.timeout(),
        };
        let clients = self.threads.clients();
        let client = clients.get(settings, self.threads.handle())?;
        Ok(observed(client, self.headers.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_stores_change_have_their_own_clients() {
        let threads = Threads::get().unwrap();
        let of = |purpose, options: &ClientOptions| {
            let connecting = Connecting {
                threads: threads.clone(),
                purpose,
                headers: HeaderMap::new(),
            };
            connecting.connect(options).unwrap();
        };
        let options = Use::Write.options(false);
        of(Use::Write, &options);
        of(Use::Write, &options.clone().with_allow_http(true));
        // What stores set for the servers of credentials.
        of(Use::Write, &options.with_connect_timeout(NEAR));
        let made = threads.clients().made.lock().unwrap();
        for (plain, connect) in [(false, NEAR), (false, CONNECT), (true, CONNECT)] {
            let settings = ClientSettings {
                plain,
                connect,
                timeout: Some(SENDING),
            };
            assert!(made.contains_key(&settings), "{settings:?}");
        }
    }
}
