//! TLS of the client: whom it trusts, which certificate it shows, and why a handshake failed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, TlsConfig, parse_pem};

/// Certificates for a server with https.
#[derive(Clone, Debug, Args)]
pub(super) struct Certificates {
    /// For https: a PEM file with the authority that signed the server's certificate; without it, those
    /// that this machine trusts
    #[arg(long, env = "QUELL_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// For https: a PEM file with the certificate to show to the server
    #[arg(long, env = "QUELL_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// A PEM file with the private key of --cert
    #[arg(
        id = "key",
        long = "key",
        env = "QUELL_KEY",
        value_name = "FILE",
        requires = "cert"
    )]
    private_key: Option<PathBuf>,
}

impl Certificates {
    /// Returns true if --ca names the authorities.
    pub(super) const fn has_authority(&self) -> bool {
        self.ca.is_some()
    }

    /// Configuration of a client for TLS.
    ///
    /// # Errors
    /// If a file cannot be read, or does not have what it should.
    pub(super) fn config(&self) -> Result<TlsConfig> {
        let provider = Arc::new(default_provider());
        let trusted = match &self.ca {
            Some(path) => certificates(path)?,
            None => trusted_by_machine()?,
        };
        let shown = match (&self.cert, &self.private_key) {
            (Some(certificate), Some(key)) => Some(shown(certificate, key, &provider)?),
            _ => None,
        };
        let config = TlsConfig::builder()
            .root_certs(trusted.into())
            .client_cert(shown)
            .unversioned_rustls_crypto_provider(provider);
        Ok(config.build())
    }
}

/// The authorities that this machine trusts.
fn trusted_by_machine() -> Result<Vec<Certificate<'static>>> {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        bail!("this machine trusts no certificate authority: name the server's with --ca FILE");
    }
    let all = found.iter();
    Ok(all
        .map(|der| Certificate::from_der(der).to_owned())
        .collect())
}

/// The certificates in a PEM file.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let items = parse_pem(&read(path)?).collect::<Result<Vec<_>, _>>();
    let items = items.map_err(|error| anyhow!("{} is not a PEM file: {error}", path.display()))?;
    let of_item = |item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    };
    let all: Vec<_> = items.into_iter().filter_map(of_item).collect();
    if all.is_empty() {
        bail!(
            "there is no certificate in {}: write a file with -----BEGIN CERTIFICATE-----",
            path.display()
        );
    }
    Ok(all)
}

/// A certificate to show, if `key` is its key.
fn shown(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<ClientCert> {
    let chain = certificates(certificate)?;
    let private = PrivateKey::from_pem(&read(key)?).map_err(|_| {
        anyhow!(
            "there is no private key in {}: write a file with -----BEGIN PRIVATE KEY-----",
            key.display()
        )
    })?;
    // ureq would panic.
    let ders = chain
        .iter()
        .map(|one| CertificateDer::from(one.der().to_vec()));
    let der = PrivateKeyDer::try_from(private.der().to_vec());
    let der = der.map_err(|reason| anyhow!("the key in {}: {reason}", key.display()))?;
    if CertifiedKey::from_der(ders.collect(), der, provider).is_err() {
        bail!(
            "the key in {} is not that of the certificate in {}: write the two that belong together",
            key.display(),
            certificate.display()
        );
    }
    Ok(ClientCert::new_with_certs(&chain, private))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reason why there is no connection over TLS to `url`, and what to do about it; none if TLS is not the
/// reason.
pub(super) fn explain(url: &str, error: &ureq::Error) -> Option<String> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(io) => io.get_ref()?.downcast_ref::<Error>()?,
        _ => return None,
    };
    Some(match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => format!(
            "{url} shows a certificate of an authority that is not trusted here: write the authority's own \
             into --ca FILE (QUELL_CA)"
        ),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!(
            "the certificate of {url} is for another name: write one of its names into --url ({error})"
        ),
        // As the library names it.
        Error::InvalidCertificate(CertificateError::Other(reason))
            if reason.to_string() == "CaUsedAsEndEntity" =>
        {
            format!(
                "the certificate of {url} is that of an authority itself, which servers must not show: make \
                 one with basicConstraints=CA:FALSE"
            )
        }
        Error::InvalidMessage(_) => {
            let plain = url.replacen("https://", "http://", 1);
            format!("the server at {url} does not speak TLS: write {plain}")
        }
        Error::AlertReceived(alert) => format!(
            "{url} refuses the TLS connection ({alert:?}): if it asks for certificates of its clients, write \
             one that it knows into --cert FILE, with --key FILE"
        ),
        other => format!("no TLS connection to {url}: {other}"),
    })
}
