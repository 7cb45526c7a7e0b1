//! Stores behind TLS: states and rules are read only from stores that the system trusts.

use std::process::Command;

use quell_testkit::port::free_port;
use quell_testkit::redis::Redis;

use crate::files::{Folder, window_rules};
use crate::process::{quell, run, until};
use crate::server::Server;

/// Files with a key and a certificate for `localhost`, which whoever trusts it takes.
pub(crate) fn certificate(folder: &Folder) -> (String, String) {
    let (key, certificate) = (
        folder.write("key.pem", ""),
        folder.write("certificate.pem", ""),
    );
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
    ]);
    openssl.args(["-subj", "/CN=localhost", "-keyout", &key]);
    openssl.args(["-out", &certificate]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    run(&mut openssl).expect_success();
    (key, certificate)
}

/// A Redis server behind TLS, with a password.
struct TlsRedis {
    _redis: Redis,
    url: String,
    /// The certificate file that a client must trust.
    certificate: String,
}

impl TlsRedis {
    /// Starts a server whose certificate is in `folder`.
    fn start(folder: &Folder) -> Self {
        let (key, certificate) = certificate(folder);
        let port = free_port();
        let tls = ["--tls-port", &port.to_string(), "--tls-auth-clients", "no"];
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
        let password = ["--requirepass", "secret"];
        Self {
            _redis: Redis::start(&[&tls[..], &files, &password].concat()),
            url: format!("rediss://:secret@localhost:{port}/0"),
            certificate,
        }
    }

    /// A command that trusts the server.
    fn trusted(&self, arguments: &[&str]) -> Command {
        let mut command = quell(arguments);
        command.env("SSL_CERT_FILE", &self.certificate);
        command
    }
}

/// For rules: clients that trust the store and have its password can push, read and follow them.
/// Others are told why not, and a server does not start.
#[test]
fn tls_asks_who_the_store_of_rules_is() {
    let folder = Folder::new();
    let redis = TlsRedis::start(&folder);
    let file = folder.write("shop.yaml", &window_rules("shop", "5/h"));
    let push = ["rules", "push", "--store", &redis.url, &file];
    until("the store answers", || {
        let run = run(&mut redis.trusted(&push));
        run.status.success().then_some(())
    });
    let stranger = run(&mut quell(&push));
    assert_eq!(stranger.code(), Some(3), "{stranger:?}");
    assert!(stranger.stderr.contains("certificate"), "{stranger:?}");
    let serve = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let serve = [&serve[..], &["--rules", &redis.url]].concat();
    let stranger = run(&mut quell(&serve));
    assert!(!stranger.status.success(), "{stranger:?}");
    assert!(stranger.stderr.contains("certificate"), "{stranger:?}");
    let thief = redis.url.replace("secret", "guessed");
    let thief = run(&mut redis.trusted(&["rules", "push", "--store", &thief, &file]));
    assert_eq!(thief.code(), Some(3), "{thief:?}");
    let server = Server::spawn(&mut redis.trusted(&serve));
    let shown = || server.get("/v1/rules");
    let rules = shown();
    assert!(rules.contains("\"version\":1"), "{rules}");
    assert!(!rules.contains("secret"), "{rules}");
    assert!(!server.log().contains("secret"), "{}", server.log());
    folder.write("shop.yaml", &window_rules("shop", "7/h"));
    run(&mut redis.trusted(&push)).expect_success();
    until("it follows", || {
        shown().contains("\"version\":2").then_some(())
    });
    server.stop();
}
