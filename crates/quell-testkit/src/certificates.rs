//! Certificates of servers and of clients, by authorities of their own; `openssl` makes them.

use std::fs;
use std::process::Command;

use parking_lot::Mutex;

use crate::files::Folder;

/// The subject of the clients' certificate.
pub const CLIENT: &str = "spiffe://example.org/checkout";

/// When certificates end that have to be valid.
const FAR_END: &str = "20990101000000Z";

const CONFIG: &str = "
[req]
distinguished_name = any
[ca]
default_ca = authority
[authority]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
";

/// Signs certificates. In its folder are `ca.pem` and `ca.key`.
#[derive(Debug)]
pub struct Authority {
    folder: Folder,
    /// Number of certificates that it signed; openssl's list of them has one writer.
    signed: Mutex<usize>,
    /// Its own certificate.
    pub pem: String,
}

/// A certificate and its private key, both as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// An authority of this name.
    pub fn new(name: &str) -> Self {
        Self::new_until(name, FAR_END)
    }

    /// The same with a certificate that ends then: `YYYYMMDDhhmmssZ`.
    pub fn new_until(name: &str, end: &str) -> Self {
        let folder = Folder::new();
        folder.write("openssl.cnf", CONFIG);
        folder.write("index.txt", "");
        let extension = "basicConstraints=critical,CA:TRUE";
        let pair = make(&folder, ("ca", name), extension, &["-selfsign"], end);
        Self {
            folder,
            signed: Mutex::default(),
            pem: pair.certificate,
        }
    }

    /// A certificate for these names and, if there is a colon in one, URIs.
    pub fn sign(&self, subjects: &[&str]) -> Pair {
        self.sign_until(subjects, FAR_END)
    }

    /// The same until then: `YYYYMMDDhhmmssZ`.
    pub fn sign_until(&self, subjects: &[&str], end: &str) -> Pair {
        let names = subjects.iter().map(|subject| match subject.contains(':') {
            true => format!("URI:{subject}"),
            false => format!("DNS:{subject}"),
        });
        self.make_for(&names.collect::<Vec<_>>().join(","), end)
    }

    /// A certificate for alternative names as openssl writes them: `DNS:NAME,URI:URI`.
    pub fn sign_for(&self, names: &str) -> Pair {
        self.make_for(names, FAR_END)
    }

    fn make_for(&self, names: &str, end: &str) -> Pair {
        let mut signed = self.signed.lock();
        *signed += 1;
        let file = format!("signed-{signed}");
        // Without an extension it would be of version 1.
        let extension = match names {
            "" => "basicConstraints=CA:FALSE".to_owned(),
            names => format!("subjectAltName={names}"),
        };
        let by = ["-cert", "ca.pem"];
        make(&self.folder, (&file, "test"), &extension, &by, end)
    }
}

/// Makes `FILE.key` and `FILE.pem` in an authority's folder.
fn make(
    folder: &Folder,
    (file, name): (&str, &str),
    extension: &str,
    by: &[&str],
    end: &str,
) -> Pair {
    let [key, request, certificate] = ["key", "csr", "pem"].map(|end| format!("{file}.{end}"));
    let subject = format!("/CN={name}");
    let mut ask = vec!["req", "-new", "-nodes", "-newkey", "ec"];
    ask.extend(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", &subject]);
    ask.extend(["-keyout", &key, "-out", &request, "-addext", extension]);
    run(folder, &ask);
    let mut sign = vec!["ca", "-batch", "-notext", "-keyfile", "ca.key"];
    sign.extend(["-startdate", "20000101000000Z", "-enddate", end]);
    sign.extend(["-in", &request, "-out", &certificate]);
    sign.extend(by);
    run(folder, &sign);
    let [certificate, key] =
        [certificate, key].map(|file| fs::read_to_string(folder.path(&file)).unwrap());
    Pair { certificate, key }
}

fn run(folder: &Folder, words: &[&str]) {
    let mut openssl = Command::new("openssl");
    openssl.args(words).args(["-config", "openssl.cnf"]);
    let done = openssl.current_dir(folder.path("")).output();
    let done = done.unwrap_or_else(|error| panic!("openssl: {error}: install Debian's openssl"));
    assert!(done.status.success(), "openssl {words:?}: {done:?}");
}

/// A folder with an authority (`ca.pem`, `ca.key`), the certificate of a server for `localhost` (`server.pem`,
/// `server.key`), and that of a client (`client.pem`, `client.key`).
#[derive(Debug)]
pub struct Certificates(Authority);

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificates {
    /// Makes them.
    pub fn new() -> Self {
        let made = Self(Authority::new("authority"));
        made.add("server", "localhost");
        made.add_client("client", CLIENT);
        made
    }

    fn add(&self, name: &str, subject: &str) {
        let Pair { certificate, key } = self.0.sign(&[subject]);
        self.0.folder.write(&format!("{name}.key"), &key);
        self.0.folder.write(&format!("{name}.pem"), &certificate);
    }

    /// Makes a further certificate of a client with this URI: `NAME.pem` and `NAME.key`.
    pub fn add_client(&self, name: &str, uri: &str) {
        self.add(name, uri);
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> String {
        self.0.folder.path(name)
    }
}
