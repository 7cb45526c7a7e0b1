//! Unix sockets: our own clients on those of a server.

use crate::files::{Folder, window_rules};
use crate::process::{quell, run};
use crate::server::Server;

/// The arguments of a server that listens on Unix sockets in `folder`.
fn arguments(folder: &Folder) -> Vec<String> {
    let rules = folder.write("shop.yaml", &window_rules("shop", "3/h"));
    let listener = |name: &str| format!("--{name}=unix:{}", folder.path(name));
    let listeners = ["http", "resp", "admin"].map(listener);
    [
        vec!["serve".into(), "--rules".into(), rules],
        listeners.into(),
    ]
    .concat()
}

fn start(folder: &Folder) -> Server {
    let mut command = quell(&[]);
    Server::spawn(command.args(arguments(folder)))
}

#[test]
fn quells_own_clients_connect_to_a_path() {
    let folder = Folder::new();
    let server = start(&folder);
    let at = |name: &str| format!("--url=unix:{}", folder.path(name));
    let check = ["check", "--domain", "shop", "-e", "user=a", "--cost", "3"];
    run(quell(&check).arg(at("http"))).expect_success();
    let refused = run(quell(&check).arg(at("http")));
    assert_eq!(refused.code(), Some(1));
    assert!(
        refused.stdout.starts_with("refused by per-user\n"),
        "{}",
        refused.stdout
    );
    let lift = ["bans", "lift", "--domain", "shop", "-e", "user=a"];
    let elsewhere = run(quell(&lift).arg(at("http")));
    assert!(
        elsewhere.stderr.contains("(--admin), so ask that one"),
        "{}",
        elsewhere.stderr
    );
    let ban = [
        "bans", "set", "--domain", "shop", "-e", "user=eve", "--for", "1h",
    ];
    run(quell(&ban).arg(at("admin"))).expect_success();
    let listed =
        run(quell(&["bans", "list"]).env("QUELL_URL", format!("unix:{}", folder.path("admin"))));
    assert!(listed.expect_success().contains("user=eve"));
    server.stop();
    let gone = run(quell(&["bans", "list"]).arg(at("admin")));
    let told = format!(
        "no server listens at unix:{}: start one",
        folder.path("admin")
    );
    assert!(gone.stderr.contains(&told), "{}", gone.stderr);
}
