//! Unix sockets: real clients on those of a server.

use crate::clients::{ioredis_eval, redis_cli, redis_py_eval};
use crate::curl::reply_of;
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
fn curl_redis_cli_redis_py_and_ioredis_connect_to_a_path() {
    let folder = Folder::new();
    let server = start(&folder);
    let [http, resp, admin] = ["http", "resp", "admin"].map(|name| folder.path(name));
    let ready =
        format!("HTTP on unix:{http}, RESP on unix:{resp}, administration on unix:{admin};");
    assert!(server.log().contains(&ready), "{}", server.log());

    let body = r#"{"domain":"shop","entries":{"user":"a"}}"#;
    let acquire = [
        "--unix-socket",
        &http,
        "--json",
        body,
        "http://localhost/v1/acquire",
    ];
    assert_eq!(reply_of(&acquire, b"").json()["remaining"], 2);
    let metrics = reply_of(&["--unix-socket", &admin, "http://quell/metrics"], b"");
    let line = "quell_connections_total{listener=\"http\"} 1\n";
    assert!(metrics.body.contains(line), "{}", metrics.body);

    let peek = ["QUELL.PEEK", "shop", "user", "a"];
    let cli = run(redis_cli(0).args(["-s", &resp]).args(peek)).expect_success();
    assert!(cli.contains("remaining\n2\n"), "{cli}");
    let python = format!(
        "import redis\n\
         for protocol in (2, 3):\n    \
             r = redis.Redis(unix_socket_path='{resp}', protocol=protocol)\n    \
             assert r.execute_command('CL.THROTTLE', 'py', 5, 1, 60)[0] == 0\n    \
             assert any(client['addr'] == '{resp}:0' for client in r.client_list())\n"
    );
    run(&mut redis_py_eval(&python)).expect_success();
    let node = format!(
        "import Redis from 'ioredis';\n\
         const redis = new Redis({{ path: '{resp}', maxRetriesPerRequest: 1 }});\n\
         const [refused] = await redis.call('CL.THROTTLE', 'js', 5, 1, 60);\n\
         if (refused !== 0) throw new Error('refused');\n\
         redis.disconnect();\n"
    );
    run(&mut ioredis_eval(&node)).expect_success();
    server.stop();
    for path in [http, resp, admin] {
        assert!(!std::path::Path::new(&path).exists(), "{path} is removed");
    }
}

#[test]
fn a_server_takes_over_from_one_that_was_killed_but_not_from_one_that_runs() {
    let folder = Folder::new();
    drop(start(&folder));
    let http = folder.path("http");
    assert!(std::path::Path::new(&http).exists(), "nobody removed it");
    let server = start(&folder);
    let second = run(quell(&[]).args(arguments(&folder)));
    assert_eq!(second.code(), Some(1));
    let told = format!(
        "cannot listen on unix:{http} for http: stop who does, or write another --http: another server \
         listens there"
    );
    assert!(second.stderr.contains(&told), "{}", second.stderr);
    let health = ["--unix-socket", &http, "http://localhost/healthz"];
    assert_eq!(reply_of(&health, b"").status, 200);
    server.stop();
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
