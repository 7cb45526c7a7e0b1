//! TLS of the listeners: real clients, with tokens and with certificates.

use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};

use crate::clients::{curl, ioredis_eval, redis_cli, redis_py_eval};
use crate::files::{Folder, window_rules};
use crate::process::{quell, run, until};
use crate::server::Server;

/// The subject of the clients' certificate.
const SUBJECT: &str = "spiffe://example.org/checkout";

/// A folder with an authority, a certificate of a server and one of a client.
pub(crate) struct Certificates {
    folder: Folder,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let folder = Folder::new();
        folder.write("ca.pem", &params.self_signed(&key).unwrap().pem());
        folder.write("ca.key", &key.serialize_pem());
        let issuer = Issuer::new(params, key);
        let made = Self { folder, issuer };
        made.sign("server", SanType::DnsName("localhost".try_into().unwrap()));
        made.sign("client", SanType::URI(SUBJECT.try_into().unwrap()));
        made
    }

    /// Writes a certificate and its key.
    pub(crate) fn sign(&self, name: &str, subject: SanType) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![subject];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let write = |end: &str, text: &str| self.folder.write(&format!("{name}.{end}"), text);
        write("key", &key.serialize_pem());
        write("pem", &certificate.pem());
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path(name)
    }

    /// The flags of a server.
    pub(crate) fn flags(&self) -> [String; 4] {
        let [certificate, key] = ["server.pem", "server.key"].map(|name| self.path(name));
        [
            "--tls-cert".to_owned(),
            certificate,
            "--tls-key".to_owned(),
            key,
        ]
    }
}

/// A server with TLS, a token that may ask, and a certificate that may ask as well.
struct Guarded {
    certificates: Certificates,
    server: Server,
    token: String,
}

impl Guarded {
    fn start() -> Self {
        let certificates = Certificates::new();
        let folder = &certificates.folder;
        let rules = folder.write("shop.yaml", &window_rules("shop", "9/h"));
        let entry = format!(
            "[[certificates]]\nname = \"of-checkout\"\nsan = \"{SUBJECT}\"\nroles = [\"ask\"]\n\n"
        );
        let credentials = folder.write("credentials.toml", &entry);
        let new = [
            "token",
            "new",
            "checkout",
            "--role",
            "ask",
            "--append",
            &credentials,
        ];
        let token = run(&mut quell(&new)).expect_success().trim().to_owned();
        let authority = certificates.path("ca.pem");
        let more = [
            "--rules",
            &rules,
            "--credentials",
            &credentials,
            "--tls-client-ca",
            &authority,
        ];
        let mut serve = quell(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        let server = Server::spawn(serve.args(certificates.flags()).args(more));
        Self {
            certificates,
            server,
            token,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.server.http)
    }

    /// curl, which trusts the server and prints the status after the body.
    fn curl(&self, arguments: &[&str]) -> String {
        let mut curl = curl();
        curl.args([
            "--silent",
            "--show-error",
            "--write-out",
            " %{http_version} %{http_code}",
        ]);
        curl.args(["--cacert", &self.certificates.path("ca.pem")]);
        run(curl.args(arguments)).expect_success()
    }

    /// redis-cli, which trusts the server.
    fn redis_cli(&self, arguments: &[&str]) -> Command {
        let mut command = redis_cli(self.server.resp);
        command.args(["-h", "localhost", "--tls", "--no-auth-warning"]);
        command.args(["--cacert", &self.certificates.path("ca.pem")]);
        command.args(arguments);
        command
    }
}

#[test]
fn curl_asks_over_https() {
    let guarded = Guarded::start();
    let bearer = format!("Authorization: Bearer {}", guarded.token);
    let json = [
        "--header",
        "Content-Type: application/json",
        "--data",
        r#"{"domain":"shop","entries":{"user":"ann"}}"#,
    ];
    let (acquire, health) = (guarded.url("/v1/acquire"), guarded.url("/healthz"));
    for (version, shown) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let with_token = ["--header", &bearer, version, &acquire];
        let answer = guarded.curl(&[&json[..], &with_token].concat());
        assert!(answer.contains("\"allowed\":true"), "{answer}");
        assert!(answer.ends_with(&format!(" {shown} 200")), "{answer}");
        let answer = guarded.curl(&[&json[..], &[version, &acquire]].concat());
        assert!(answer.ends_with(&format!(" {shown} 401")), "{answer}");
        let [certificate, key] = ["client.pem", "client.key"].map(|n| guarded.certificates.path(n));
        let with_certificate = ["--cert", &certificate, "--key", &key, version, &acquire];
        let answer = guarded.curl(&[&json[..], &with_certificate].concat());
        assert!(answer.ends_with(&format!(" {shown} 200")), "{answer}");
    }
    for version in ["--tlsv1.2", "--tlsv1.3"] {
        let answer = guarded.curl(&[version, "--tls-max", &version[6..], &health]);
        assert!(answer.ends_with(" 200"), "{version}: {answer}");
    }
    let stranger = run(curl().args(["--silent", &health]));
    assert_eq!(stranger.code(), Some(60), "it trusts nobody: {stranger:?}");
    let plain = format!("http://localhost:{}/healthz", guarded.server.http);
    let answer = guarded.curl(&[&plain]);
    assert!(
        answer.contains("https://") && answer.ends_with(" 400"),
        "{answer}"
    );
    guarded.server.stop();
}

#[test]
fn redis_cli_asks_over_tls() {
    let guarded = Guarded::start();
    let throttle = ["CL.THROTTLE", "k", "9", "1", "3600"];
    let named = ["--user", "checkout", "--pass", &guarded.token];
    let told = run(&mut guarded.redis_cli(&[&named[..], &throttle].concat()));
    assert!(told.expect_success().starts_with("0\n10\n9\n"));
    let told = run(&mut guarded.redis_cli(&throttle));
    assert!(told.stdout.contains("NOAUTH"), "{told:?}");
    let [certificate, key] = ["client.pem", "client.key"].map(|n| guarded.certificates.path(n));
    let shown = ["--cert", &certificate, "--key", &key];
    let told = run(&mut guarded.redis_cli(&[&shown[..], &throttle].concat()));
    assert!(told.expect_success().starts_with("0\n10\n8\n"));
    let told = run(redis_cli(guarded.server.resp).arg("PING"));
    let said = format!("{}{}", told.stdout, told.stderr);
    assert!(said.contains("this port speaks TLS"), "{told:?}");
    guarded.server.stop();
}

#[test]
fn libraries_of_redis_ask_over_tls() {
    let guarded = Guarded::start();
    let (port, token) = (guarded.server.resp, &guarded.token);
    let [authority, certificate, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| guarded.certificates.path(name));
    let python = format!(
        "import redis\n\
         tls = dict(host='localhost', port={port}, ssl=True, ssl_ca_certs='{authority}')\n\
         shown = dict(ssl_certfile='{certificate}', ssl_keyfile='{key}')\n\
         for protocol in (2, 3):\n    \
             for auth in (dict(username='checkout', password='{token}'), shown):\n        \
                 r = redis.Redis(protocol=protocol, **tls, **auth)\n        \
                 pipe = r.pipeline(transaction=False)\n        \
                 for _ in range(500):\n            \
                     pipe.execute_command('CL.THROTTLE', 'py', 5000, 1, 60)\n        \
                 assert all(reply[0] == 0 for reply in pipe.execute())\n    \
             try:\n        \
                 redis.Redis(protocol=protocol, **tls).execute_command('PING')\n        \
                 raise SystemExit('not refused')\n    \
             except redis.exceptions.AuthenticationError:\n        \
                 pass\n"
    );
    run(&mut redis_py_eval(&python)).expect_success();
    let node = format!(
        "import Redis from 'ioredis';\n\
         import {{ readFileSync }} from 'node:fs';\n\
         const ca = readFileSync('{authority}');\n\
         const shown = {{ ca, cert: readFileSync('{certificate}'), key: readFileSync('{key}') }};\n\
         const at = {{ host: 'localhost', port: {port} }};\n\
         for (const more of [{{ username: 'checkout', password: '{token}', tls: {{ ca }} }}, \
                             {{ tls: shown }}]) {{\n\
           const client = new Redis({{ ...at, ...more }});\n\
           const calls = Array.from({{ length: 500 }}, \
             () => client.call('CL.THROTTLE', 'node', 5000, 1, 60));\n\
           const replies = await Promise.all(calls);\n\
           if (replies.some((reply) => reply[0] !== 0)) process.exit(1);\n\
           await client.quit();\n\
         }}\n"
    );
    run(&mut ioredis_eval(&node)).expect_success();
    guarded.server.stop();
}

#[test]
fn a_signal_brings_a_new_certificate() {
    let guarded = Guarded::start();
    let shown = || {
        let mut openssl = Command::new("openssl");
        let at = format!("localhost:{}", guarded.server.http);
        run(openssl.args(["s_client", "-connect", &at, "-showcerts"])).stdout
    };
    let pem = || std::fs::read_to_string(guarded.certificates.path("server.pem")).unwrap();
    let before = pem();
    assert!(shown().contains(before.trim()));
    let localhost = SanType::DnsName("localhost".try_into().unwrap());
    guarded.certificates.sign("server", localhost);
    guarded.server.signal("HUP");
    let after = pem();
    until("it shows the new one", || {
        shown().contains(after.trim()).then_some(())
    });
    assert_ne!(before, after);
    assert!(guarded.server.log().contains("certificates reloaded"));
    guarded.server.stop();
}

#[test]
fn entries_of_certificates_that_nobody_can_show_are_warned_of() {
    let folder = Folder::new();
    let entry = format!("[[certificates]]\nname = 'a'\nsan = '{SUBJECT}'\nroles = ['ask']\n");
    let credentials = folder.write("credentials.toml", &entry);
    let server = Server::start(&["--credentials", &credentials]);
    assert!(
        server.log().contains("write tls_client_ca"),
        "{}",
        server.log()
    );
    folder.write("credentials.toml", &entry.replace("'a'", "'b'"));
    until("a reload says it again", || {
        let times = server.log().matches("write tls_client_ca").count();
        (times == 2).then_some(())
    });
    server.stop();

    let guarded = Guarded::start();
    let log = guarded.server.log();
    assert!(!log.contains("write tls_client_ca"), "{log}");
    guarded.server.stop();
}
