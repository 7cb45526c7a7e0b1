//! Credentials: a newcomer makes tokens, and real clients show them.
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use tempfile::TempDir;

use crate::clients::{curl, ioredis_eval, redis_cli, redis_py_eval};
use crate::listener_tls::Certificates;
use crate::process::{Run, quell, run, run_with_input};
use crate::server::Server;

const RULES: &str = "domain: shop\nrules:\n  - { name: login, per: [user], rate: 100/min }\n";

/// A server with a token that may ask and one that may look after bans.
struct Guarded {
    folder: TempDir,
    server: Server,
    ask: String,
    ops: String,
}

/// Runs `quell token password` with this on its standard input.
fn new_password(arguments: &[&str], input: &str) -> Run {
    let mut command = quell(&["token", "password"]);
    run_with_input(command.args(arguments), input.as_bytes())
}

#[test]
fn people_log_in_with_a_password_by_curl() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("credentials.toml");
    let path = path.to_str().unwrap();
    let (ada, password) = (
        ["ada", "--role", "read", "--append", path],
        "four words of Ada's",
    );
    let made = new_password(&ada, &format!("{password}\nand more\n"));
    assert_eq!(made.stderr, "");
    assert_eq!(made.expect_success(), "");
    let file = std::fs::read_to_string(path).unwrap();
    assert!(
        file.contains("$argon2id$") && !file.contains(password),
        "{file}"
    );
    for (arguments, input, told) in [
        (
            &ada[..],
            "another password\n",
            "two entries have the name `ada`",
        ),
        (
            &["eve", "--role", "read"],
            "too short\n",
            "at least 12 characters",
        ),
        (&["eve", "--role", "read"], "", "at least 12 characters"),
        (
            &["eve", "--role", "ask"],
            "long enough for it\n",
            "quell token new --role ask",
        ),
        (&["eve"], "long enough for it\n", "--role"),
    ] {
        let refused = new_password(arguments, input);
        assert_ne!(refused.code(), Some(0));
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
    }
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let rules = folder.path().join("rules.yaml");
    let server = Server::start(&["--rules", rules.to_str().unwrap(), "--credentials", path]);
    let url = server.url("/v1/rules");
    let status = |user: &str| {
        let asked = [
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-u",
            user,
            &url,
        ];
        run(curl().args(asked)).stdout
    };
    assert_eq!(status(&format!("ada:{password}")), "200");
    assert_eq!(status("ada:four words of Eve's"), "401");
    assert_eq!(status(&format!("eve:{password}")), "401");
    assert_refused_by_resp(&server, password);
}

/// RESP takes tokens only.
fn assert_refused_by_resp(server: &Server, password: &str) {
    let login = [
        "--user",
        "ada",
        "--pass",
        password,
        "--no-auth-warning",
        "PING",
    ];
    let refused = run(redis_cli(server.resp).args(login));
    let told = refused.stdout + &refused.stderr;
    assert!(told.contains("RESP takes tokens"), "{told}");
}

fn new_token(arguments: &[&str]) -> Run {
    run(quell(&["token", "new"]).args(arguments))
}

impl Guarded {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (rules, credentials) = (file("shop.yaml"), file("credentials.toml"));
        std::fs::write(&rules, RULES).unwrap();
        let token = |arguments: &[&str]| {
            let made = new_token(&[arguments, &["--append", &credentials]].concat());
            made.expect_success().trim().to_owned()
        };
        let ask = token(&["checkout", "--role", "ask"]);
        let ops = token(&["ops", "--role", "read,admin,metrics"]);
        let server = Server::start(&["--rules", &rules, "--credentials", &credentials]);
        Self {
            folder,
            server,
            ask,
            ops,
        }
    }

    /// A command of `quell` that asks this server.
    fn quell(&self, arguments: &[&str]) -> Command {
        let mut command = quell(arguments);
        command.args(["--url", &self.server.url("")]);
        command
    }
}

#[test]
fn quells_own_clients_show_a_token() {
    let guarded = Guarded::start();
    let check = ["check", "--domain", "shop", "-e", "user=a"];
    let refused = run(&mut guarded.quell(&check));
    assert_eq!(refused.code(), Some(3));
    assert!(
        refused.stderr.contains("--token-file FILE or QUELL_TOKEN"),
        "{}",
        refused.stderr
    );
    run(guarded.quell(&check).env("QUELL_TOKEN", &guarded.ask)).expect_success();
    let path = guarded.folder.path().join("ask.token");
    std::fs::write(&path, format!("{}\n", guarded.ask)).unwrap();
    run(guarded.quell(&check).arg("--token-file").arg(&path)).expect_success();
    let gone = path.with_extension("gone");
    let unread = run(guarded.quell(&check).arg("--token-file").arg(&gone));
    assert_eq!(unread.code(), Some(2), "{unread:?}");
    let told = "write into --token-file where it is";
    assert!(unread.stderr.contains(told), "{unread:?}");

    let ban = [
        "bans", "set", "--domain", "shop", "-e", "user=eve", "--for", "1h",
    ];
    let refused = run(guarded.quell(&ban).env("QUELL_TOKEN", &guarded.ask));
    assert!(
        refused.stderr.contains("does not have the role `admin`"),
        "{}",
        refused.stderr
    );
    run(guarded.quell(&ban).env("QUELL_TOKEN", &guarded.ops)).expect_success();
    let listed = run(guarded
        .quell(&["bans", "list"])
        .env("QUELL_TOKEN", &guarded.ops));
    assert!(listed.expect_success().contains("user=eve"));
}

#[test]
fn over_https_they_show_it_too() {
    let (folder, certificates) = (TempDir::new().unwrap(), Certificates::new());
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (rules, credentials) = (file("shop.yaml"), file("credentials.toml"));
    std::fs::write(&rules, RULES.replace("100/min", "1/day")).unwrap();
    let role = ["ops", "--role", "ask,read,admin", "--append", &credentials];
    std::fs::write(file("token"), new_token(&role).expect_success()).unwrap();
    let mut serve = quell(&["serve", "--http", "127.0.0.1:0", "--resp", "off"]);
    serve.args(["--rules", &rules, "--credentials", &credentials]);
    let server = Server::spawn(serve.args(certificates.flags()));
    let (url, authority) = (
        format!("https://localhost:{}", server.http),
        certificates.path("ca.pem"),
    );
    let asks = |arguments: &[&str], token: bool| {
        let mut command = quell(arguments);
        command.args(["--url", &url, "--ca", &authority]);
        if token {
            command.args(["--token-file", &file("token")]);
        }
        run(&mut command)
    };
    let check = ["check", "--domain", "shop", "-e", "user=eve"];
    assert_eq!(asks(&check, true).code(), Some(0));
    assert_eq!(asks(&check, true).code(), Some(1));
    let ban = [
        "bans", "set", "--domain", "shop", "-e", "user=eve", "--for", "1h",
    ];
    asks(&ban, true).expect_success();
    assert!(
        asks(&["bans", "list"], true)
            .expect_success()
            .contains("user=eve")
    );
    assert!(asks(&["top"], true).expect_success().contains("login"));
    let holds = ["holds", "--domain", "shop", "-e", "user=eve"];
    assert!(
        asks(&holds, true)
            .expect_success()
            .contains("nothing is held")
    );
    for arguments in [&check[..], &ban, &["bans", "list"], &holds, &["top"]] {
        let refused = asks(arguments, false);
        assert_eq!(refused.code(), Some(3), "{arguments:?}");
        assert!(
            refused.stderr.contains("--token-file FILE or QUELL_TOKEN"),
            "{refused:?}"
        );
    }
    server.stop();
}

#[test]
fn credentials_come_from_the_environment() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (rules, credentials) = (file("shop.yaml"), file("credentials.toml"));
    std::fs::write(&rules, RULES).unwrap();
    let role = ["checkout", "--role", "ask", "--append", &credentials];
    let token = new_token(&role).expect_success();
    let text = std::fs::read_to_string(&credentials).unwrap();
    std::fs::remove_file(&credentials).unwrap();
    let serve = || {
        let mut serve = quell(&["serve", "--http", "127.0.0.1:0", "--resp", "off"]);
        serve.args(["--rules", &rules, "--credentials", "env:SHOP_TOKENS"]);
        serve
    };
    let server = Server::spawn(serve().env("SHOP_TOKENS", &text));
    let check = || {
        let mut check = quell(&["check", "--domain", "shop", "-e", "user=a"]);
        check.args(["--url", &server.url("")]);
        check
    };
    run(check().env("QUELL_TOKEN", token.trim())).expect_success();
    assert_eq!(run(&mut check()).code(), Some(3));
    server.stop();

    let none = run(serve().env_remove("SHOP_TOKENS"));
    assert_eq!(none.code(), Some(1), "{none:?}");
    assert!(none.stderr.contains("SHOP_TOKENS"), "{none:?}");
    let wrong = run(serve().env("SHOP_TOKENS", "[[tokens]]"));
    assert_eq!(wrong.code(), Some(1), "{wrong:?}");
    assert!(wrong.stderr.contains("env:SHOP_TOKENS"), "{wrong:?}");
    let known = wrong.stderr.contains(token.trim());
    assert!(!known, "an error shows a token");
}

#[test]
fn clients_of_redis_show_a_token_as_their_password() {
    let guarded = Guarded::start();
    let port = guarded.server.resp;
    let throttle = ["CL.THROTTLE", "k", "1", "1", "60"];
    let cli = |auth: &[&str]| run(redis_cli(port).args(auth).args(throttle)).stdout;
    assert!(cli(&[]).contains("NOAUTH"));
    assert!(cli(&["-a", "x", "--no-auth-warning"]).contains("NOAUTH"));
    let named = [
        "--user",
        "checkout",
        "--pass",
        &guarded.ask,
        "--no-auth-warning",
    ];
    assert!(cli(&named).starts_with("0\n2\n"), "{}", cli(&named));

    let (ask, ops) = (&guarded.ask, &guarded.ops);
    let python = format!(
        "import redis\n\
         for protocol in (2, 3):\n    \
             r = redis.Redis(port={port}, username='checkout', password='{ask}', protocol=protocol)\n    \
             assert r.execute_command('CL.THROTTLE', 'py', 5, 1, 60)[0] == 0\n    \
             r = redis.Redis(port={port}, password='{ops}', protocol=protocol)\n    \
             try:\n        \
                 r.execute_command('CL.THROTTLE', 'py', 5, 1, 60)\n        \
                 raise SystemExit('not refused')\n    \
             except redis.exceptions.NoPermissionError:\n        \
                 pass\n"
    );
    run(&mut redis_py_eval(&python)).expect_success();
    let node = format!(
        "import Redis from 'ioredis';\n\
         const client = new Redis({{ port: {port}, username: 'checkout', password: '{ask}' }});\n\
         const reply = await client.call('CL.THROTTLE', 'node', 5, 1, 60);\n\
         if (reply[0] !== 0) process.exit(1);\n\
         const wrong = new Redis({{ port: {port}, password: 'x', retryStrategy: null }});\n\
         wrong.on('error', () => {{}});\n\
         const refused = await wrong.call('PING').then(() => '', String);\n\
         if (!refused.includes('WRONGPASS')) {{ console.error(refused); process.exit(1); }}\n\
         client.disconnect(); wrong.disconnect();\n"
    );
    run(&mut ioredis_eval(&node)).expect_success();
}

#[test]
fn curl_shows_a_token() {
    let guarded = Guarded::start();
    let authorize = guarded.server.url("/v1/authorize?domain=shop");
    let status = |fields: &[&str]| {
        let mut curl = curl();
        curl.args([
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ]);
        for field in fields {
            curl.args(["--header", field]);
        }
        run(curl.arg(&authorize)).expect_success()
    };
    assert_eq!(status(&[]), "401");
    assert_eq!(
        status(&[&format!("Authorization: Bearer {}", guarded.ask)]),
        "204"
    );
    assert_eq!(
        status(&[&format!("Authorization: Bearer {}", guarded.ops)]),
        "403"
    );
    let gateway = format!("X-Quell-Token: {}", guarded.ask);
    assert_eq!(
        status(&["Authorization: Bearer of-the-site", &gateway]),
        "204"
    );
}

#[test]
fn a_token_is_printed_once_and_its_entry_is_checked() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("credentials.toml");
    let append = ["--append", path.to_str().unwrap()];
    let shown = new_token(&["a", "--role", "ask", "--domain", "shop"]);
    assert!(shown.stderr.contains("domains = [\"shop\"]") && shown.stderr.contains("sha256 = "));
    assert!(
        !shown.stderr.contains(shown.stdout.trim()),
        "{}",
        shown.stderr
    );
    let kept = new_token(&[&["a", "--role", "ask"], &append[..]].concat());
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(
        !file.contains(kept.expect_success().trim()) && file.contains("name = \"a\""),
        "{file}"
    );
    let node = new_token(&["edge-1", "--role", "node"]);
    assert!(
        node.stderr.contains("roles = [\"node\"]"),
        "{}",
        node.stderr
    );
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    // The same name again is refused, and the file stays what it was.
    let again = new_token(&[&["a", "--role", "ask"], &append[..]].concat());
    assert_eq!((again.code(), again.stdout.as_str()), (Some(1), ""));
    assert!(
        again.stderr.contains("two entries have the name `a`"),
        "{}",
        again.stderr
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), file);
    for (arguments, told) in [
        (&["a b", "--role", "ask"][..], "1 to 64 letters"),
        (
            &["a", "--role", "boss"],
            "write ask, read, admin, metrics, node or proxy",
        ),
        (&["a"], "--role"),
    ] {
        let refused = new_token(arguments);
        assert_eq!(refused.code(), Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
    }
}
