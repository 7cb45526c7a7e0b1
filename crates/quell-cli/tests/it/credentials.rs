//! Credentials: a newcomer makes tokens and passwords, and our own clients show them.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use tempfile::TempDir;

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
fn a_password_is_read_and_kept_as_a_hash() {
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
    let told = "write the token's file into --token-file";
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
            "write ask, read, admin, policy, metrics, node or proxy",
        ),
        (&["a"], "--role"),
    ] {
        let refused = new_token(arguments);
        assert_eq!(refused.code(), Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
    }
}
