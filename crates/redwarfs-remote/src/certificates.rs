//! The certificates of the system.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// Compares certificates of servers with those of the system. These are loaded once, and not before a server shows its own:
/// that takes longer than all else that this machine does to open an object.
#[derive(Debug)]
pub(crate) struct SystemCertificates {
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Verifier>,
    /// Held while they are loaded, so that others wait and do not do it, too.
    loading: Mutex<()>,
}

impl SystemCertificates {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            verifier: OnceLock::new(),
            loading: Mutex::new(()),
        })
    }

    /// Loads them, unless this was done. After an error, the next call tries again.
    ///
    /// # Errors
    /// The system has no certificates, or they cannot be read.
    pub(crate) fn load(&self) -> Result<&Verifier, Error> {
        if let Some(verifier) = self.verifier.get() {
            return Ok(verifier);
        }
        let _one = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verifier) = self.verifier.get() {
            return Ok(verifier);
        }
        let verifier = Verifier::new(Arc::clone(&self.provider))?;
        Ok(self.verifier.get_or_init(|| verifier))
    }

    /// Settings for connections to servers with such certificates.
    ///
    /// # Errors
    /// The cryptography of the program does not fit.
    pub(crate) fn config(self: &Arc<Self>) -> Result<ClientConfig, Error> {
        let verifier = Arc::clone(self);
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ServerCertVerifier for SystemCertificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier = self.load()?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.load()?.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.load()?.verify_tls13_signature(message, cert, dss)
    }

    /// The client says them before a server shows a certificate.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
