//! TLS: the certificate that the listeners show, and the authorities that vouch for their clients.
//!
//! The files are read at the start, and again when they change. A connection keeps the certificate that
//! it began with.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error as RustlsError, InconsistentKeys, RootCertStore, ServerConfig};
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;

/// The files, as the settings name them.
#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// TLS of the listeners, as the files have it.
#[derive(Debug)]
pub struct Tls {
    files: Files,
    http: Acceptor,
    resp: Acceptor,
    in_force: ArcSwap<Facts>,
    /// Held from reading to storing, so that older files never replace newer ones.
    reload: Mutex<()>,
}

/// One listener's present TLS settings.
#[derive(Clone)]
pub struct Acceptor(Arc<ArcSwap<ServerConfig>>);

/// Facts about the files in force.
#[derive(Debug)]
struct Facts {
    /// The SHA-256 of the files.
    digest: [u8; 32],
    /// The end of the first certificate of the chain to expire.
    expires: Timestamp,
}

/// The files, parsed.
struct Loaded {
    http: ServerConfig,
    resp: ServerConfig,
    facts: Facts,
}

/// Reason why TLS is not possible with these files. The text says what to write.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read {}: write another path, or let the server read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The contents cannot be used.
    #[error("{}: {reason}", path.display())]
    Mistake {
        /// The file.
        path: PathBuf,
        /// The fault, and what to write.
        reason: String,
    },
}

impl Tls {
    /// Reads a certificate with its chain, its key, and the authorities that vouch for clients, all PEM.
    ///
    /// # Errors
    /// A text that says what is wrong with them, and what to write instead.
    pub fn from_files(
        certificate: PathBuf,
        key: PathBuf,
        client_ca: Option<PathBuf>,
    ) -> Result<Self, TlsError> {
        let files = Files {
            certificate,
            key,
            client_ca,
        };
        let loaded = files.load()?;
        let acceptor = |config| Acceptor(Arc::new(ArcSwap::from_pointee(config)));
        Ok(Self {
            files,
            http: acceptor(loaded.http),
            resp: acceptor(loaded.resp),
            in_force: ArcSwap::from_pointee(loaded.facts),
            reload: Mutex::default(),
        })
    }

    /// Reads the files again, which may block. If they have a mistake, those in force stay. Returns
    /// whether they differ from those before.
    ///
    /// # Errors
    /// As [`Tls::from_files`].
    pub fn reload(&self) -> Result<bool, TlsError> {
        let _turn = self.reload.lock();
        let loaded = self.files.load()?;
        let differ = loaded.facts.digest != self.in_force.load().digest;
        if differ {
            self.http.0.store(Arc::new(loaded.http));
            self.resp.0.store(Arc::new(loaded.resp));
            self.in_force.store(Arc::new(loaded.facts));
        }
        Ok(differ)
    }

    /// The files that it is read from.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let Files {
            certificate,
            key,
            client_ca,
        } = &self.files;
        let client_ca = client_ca.iter();
        [certificate, key]
            .into_iter()
            .chain(client_ca)
            .cloned()
            .collect()
    }

    /// Expiry of the first certificate of the chain.
    pub fn expires(&self) -> Timestamp {
        self.in_force.load().expires
    }

    /// For listeners that speak HTTP.
    pub fn http(&self) -> Acceptor {
        self.http.clone()
    }

    /// For listeners that speak RESP.
    pub fn resp(&self) -> Acceptor {
        self.resp.clone()
    }
}

impl Acceptor {
    /// The settings of a connection that begins now.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.load_full()
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

impl Files {
    fn load(&self) -> Result<Loaded, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = Pem::read(&self.certificate)?;
        let key = Pem::read(&self.key)?;
        let client_ca = self.client_ca.as_deref().map(Pem::read).transpose()?;
        let (certificates, expires) = chain.certificates()?;
        let verifier = client_ca
            .as_ref()
            .map(|authorities| authorities.verifier(&provider));
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| chain.mistake(error.to_string()))?;
        let builder = match verifier.transpose()? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut resp = builder
            .with_single_cert(certificates, key.private_key()?)
            .map_err(|error| self.unfit(&error))?;
        if client_ca.is_some() {
            // A session that is resumed does not check the client's certificate again, which may have
            // expired.
            resp.session_storage = Arc::new(NoServerSessionStorage {});
            resp.send_tls13_tickets = 0;
        }
        let mut http = resp.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut digest = Sha256::new();
        for file in [Some(&chain), Some(&key), client_ca.as_ref()] {
            digest.update(Sha256::digest(file.map_or(&[][..], |file| &file.text)));
        }
        let digest = digest.finalize().into();
        let facts = Facts { digest, expires };
        Ok(Loaded { http, resp, facts })
    }

    /// The error for a certificate and a key that cannot be used.
    fn unfit(&self, error: &RustlsError) -> TlsError {
        let key = self.key.clone();
        let reason = match error {
            RustlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => format!(
                "this key is not that of the first certificate in {}: write the key that belongs to it, \
                 and put the server's own certificate before those that signed it",
                self.certificate.display()
            ),
            error => format!(
                "this key cannot be used ({error}): write an RSA key of at least 2048 bits, or an ECDSA \
                 (P-256, P-384) or Ed25519 key"
            ),
        };
        TlsError::Mistake { path: key, reason }
    }
}

/// A PEM file.
struct Pem<'a> {
    path: &'a Path,
    text: Vec<u8>,
}

impl<'a> Pem<'a> {
    fn read(path: &'a Path) -> Result<Self, TlsError> {
        let text = std::fs::read(path).map_err(|source| TlsError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path, text })
    }

    fn mistake(&self, reason: impl Into<String>) -> TlsError {
        TlsError::Mistake {
            path: self.path.to_owned(),
            reason: reason.into(),
        }
    }

    fn unreadable(&self, error: &PemError) -> TlsError {
        self.mistake(format!("it is not sound PEM ({error:?}): write it anew"))
    }

    /// All certificates, each with its end.
    fn all(&self) -> Result<Vec<(CertificateDer<'static>, Timestamp)>, TlsError> {
        let all = CertificateDer::pem_slice_iter(&self.text).map(|certificate| {
            let certificate = certificate.map_err(|error| self.unreadable(&error))?;
            let end = end_of(&certificate).ok_or_else(|| {
                self.mistake("one of its certificates cannot be read: write it anew")
            })?;
            Ok((certificate, end))
        });
        let all: Vec<_> = all.collect::<Result<_, TlsError>>()?;
        match all.is_empty() {
            true => Err(self.mistake(
                "it has no certificate: write a PEM file with -----BEGIN CERTIFICATE-----, not DER or \
                 PKCS#12",
            )),
            false => Ok(all),
        }
    }

    /// The chain of a server, and the end of the first of it to expire.
    fn certificates(&self) -> Result<(Vec<CertificateDer<'static>>, Timestamp), TlsError> {
        let all = self.all()?;
        let end = all.iter().map(|(_, end)| *end).min().unwrap_or_default();
        if end <= Timestamp::now() {
            return Err(self.mistake(format!(
                "it has a certificate that expired on {end}: write one that is valid"
            )));
        }
        let chain = all.into_iter().map(|(certificate, _)| certificate);
        Ok((chain.collect(), end))
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|error| {
            let text = String::from_utf8_lossy(&self.text);
            match error {
                PemError::NoItemsFound if text.contains("ENCRYPTED") => self.mistake(
                    "the key is encrypted, and a server cannot type its password: write the key without one \
                    (openssl pkey -in FILE -out OTHER)",
                ),
                PemError::NoItemsFound => self.mistake(
                    "it has no private key: write a PEM file with -----BEGIN PRIVATE KEY-----",
                ),
                error => self.unreadable(&error),
            }
        })
    }

    /// Checks the certificates of clients; those who show none are let in all the same, since they may
    /// have a token.
    fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let now = Timestamp::now();
        let mut roots = RootCertStore::empty();
        let mut last = Timestamp::MIN;
        for (certificate, end) in self.all()? {
            last = last.max(end);
            // Whoever checks a certificate does not look at the end of its root.
            if end > now {
                let added = roots.add(certificate);
                added.map_err(|error| {
                    self.mistake(format!("one of its certificates cannot be used: {error}"))
                })?;
            }
        }
        if roots.is_empty() {
            return Err(self.mistake(format!(
                "its last certificate expired on {last}: write the certificate of an authority that is \
                 valid"
            )));
        }
        let provider = Arc::clone(provider);
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()
            .map_err(|error| self.mistake(error.to_string()))
    }
}

/// Expiry of a certificate.
fn end_of(certificate: &[u8]) -> Option<Timestamp> {
    let parsed = CertificateInner::<Raw>::from_der(certificate).ok()?;
    let end = parsed.tbs_certificate().validity().not_after;
    Timestamp::UNIX_EPOCH
        .checked_add(end.to_unix_duration())
        .ok()
}
