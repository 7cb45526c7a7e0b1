//! Fixtures: what a page takes for granted, such as an etcd, certificates, or an installed package.

use std::fs;

use quell_testkit::etcd::Etcd;

use crate::files::{Folder, of_repository};
use crate::tls;

/// The port of a Redis behind TLS, which no page names.
pub(super) const REDIS_TLS: &str = "6390";

/// The servers that a page takes for granted: a Redis of the reader's, on the port that the page says.
pub(super) fn servers(page: &str) -> Option<&'static str> {
    match page {
        "docs/coming-from.md" => Some("granted redis-server --port 6379 --save ''"),
        "docs/rules.md" => Some(
            "granted redis-server --port 6379 --save '' --tls-port 6390 --tls-auth-clients no \
             --tls-cert-file certificate.pem --tls-key-file key.pem",
        ),
        _ => None,
    }
}

/// Further things that a page takes for granted.
#[derive(Default)]
pub(super) struct Fixture {
    /// Machines that the page names, and what stands for them here.
    pub(super) machines: Vec<(String, String)>,
    _etcd: Option<Etcd>,
}

impl Fixture {
    /// Makes it; its files are in `folder`.
    pub(super) fn new(page: &str, folder: &Folder) -> Self {
        match page {
            "docs/fleet.md" => Self::with_fleet(folder),
            "docs/rules.md" => {
                let (_, certificate) = tls::certificate(folder);
                fs::copy(certificate, folder.path("authority.pem")).unwrap();
                let mut fixture = Self::default();
                let redis = format!("localhost:{REDIS_TLS}");
                fixture.stands_for("redis.internal:6379", &redis);
                fixture.with_etcd(Etcd::start())
            }
            "docs/operate.md" => {
                install(folder);
                Self::default()
            }
            _ => Self::default(),
        }
    }

    /// An etcd behind TLS, and the certificates of its clients, of a coordinator and of nodes.
    fn with_fleet(folder: &Folder) -> Self {
        let etcd = Etcd::with_tls();
        let certificates = etcd.certificates();
        for (name, of) in [
            ("etcd-ca.pem", "ca.pem"),
            ("nodes-ca.pem", "ca.pem"),
            ("ca.pem", "ca.pem"),
            ("coordinator-1.pem", "server.pem"),
            ("coordinator-1.key", "server.key"),
        ] {
            fs::copy(certificates.path(of), folder.path(name)).unwrap();
        }
        let mut fixture = Self::default();
        fixture.stands_for("coordinator-1.internal", "localhost");
        fixture.with_etcd(etcd)
    }

    fn stands_for(&mut self, machine: &str, here: &str) {
        self.machines.push((machine.to_owned(), here.to_owned()));
    }

    /// One etcd for the three of the page.
    fn with_etcd(mut self, etcd: Etcd) -> Self {
        let endpoint = etcd.endpoint();
        let (_, address) = endpoint.split_once("://").unwrap();
        for machine in 1..=3 {
            self.stands_for(&format!("etcd-{machine}:2379"), address);
        }
        Self {
            _etcd: Some(etcd),
            ..self
        }
    }
}

/// The files in `/etc` of the package, and its unit.
fn install(folder: &Folder) {
    let rules = folder.path("etc/quell/rules.d");
    fs::create_dir_all(&rules).unwrap();
    fs::copy(
        of_repository("deploy/example.yaml"),
        format!("{rules}/example.yaml"),
    )
    .unwrap();
    fs::copy(
        of_repository("deploy/quell.service"),
        folder.path("quell.service"),
    )
    .unwrap();
    let text = fs::read_to_string(of_repository("deploy/quell.toml")).unwrap();
    let text = text.replace("\"/", &format!("\"{}", folder.path("")));
    fs::write(folder.path("etc/quell/quell.toml"), text).unwrap();
}
