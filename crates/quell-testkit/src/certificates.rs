//! Certificates of a server and of clients, by an authority of their own.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};

use crate::files::Folder;

/// The subject of the clients' certificate.
pub const CLIENT: &str = "spiffe://example.org/checkout";

/// A folder with an authority (`ca.pem`, `ca.key`), the certificate of a server for `localhost` (`server.pem`,
/// `server.key`), and that of a client (`client.pem`, `client.key`).
#[derive(Debug)]
pub struct Certificates {
    folder: Folder,
    issuer: Issuer<'static, KeyPair>,
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificates {
    /// Makes them.
    pub fn new() -> Self {
        let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "authority");
        let folder = Folder::new();
        folder.write("ca.pem", &params.self_signed(&key).unwrap().pem());
        folder.write("ca.key", &key.serialize_pem());
        let issuer = Issuer::new(params, key);
        let made = Self { folder, issuer };
        made.sign("server", SanType::DnsName("localhost".try_into().unwrap()));
        made.add_client("client", CLIENT);
        made
    }

    fn sign(&self, name: &str, subject: SanType) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![subject];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.folder
            .write(&format!("{name}.key"), &key.serialize_pem());
        self.folder
            .write(&format!("{name}.pem"), &certificate.pem());
    }

    /// Makes a further certificate of a client with this URI: `NAME.pem` and `NAME.key`.
    pub fn add_client(&self, name: &str, uri: &str) {
        self.sign(name, SanType::URI(uri.try_into().unwrap()));
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> String {
        self.folder.path(name)
    }
}
