//! The binary under the name `ratelimit`, with the variables of envoyproxy/ratelimit.

use std::os::unix::fs::symlink;
use std::process::Command;

use quell_testkit::redis::Redis;

use crate::clients::curl;
use crate::files::Folder;
use crate::process::{quell, run};
use crate::server::Server;

const LIMITS: &str = "
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit: { unit: day, requests_per_unit: 2 }
";

/// The command under its other name, with these variables and no others of that service.
pub(crate) fn ratelimit(folder: &Folder, variables: &[(&str, &str)]) -> Command {
    let link = folder.path("ratelimit");
    if !std::path::Path::new(&link).exists() {
        symlink(env!("CARGO_BIN_EXE_quell"), &link).unwrap();
    }
    let mut command = Command::new(link);
    command.env_clear();
    for (name, value) in [
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", "0"),
        ("USE_STATSD", "false"),
    ] {
        command.env(name, value);
    }
    command.envs(variables.iter().copied());
    command
}

/// Cases 25, 27 and 28: the image is exchanged, files and variables stay.
#[test]
fn the_other_name_serves_the_other_files() {
    let redis = Redis::start(&[]);
    let folder = Folder::new();
    let directory = folder.path("data/ratelimit/config");
    std::fs::create_dir_all(directory).unwrap();
    folder.write("data/ratelimit/config/limits.yaml", LIMITS);
    let root = folder.path("data");
    let url = redis.url();
    let address = url.split_once("://").unwrap().1;
    let variables = [
        ("RUNTIME_ROOT", &*root),
        ("RUNTIME_SUBDIRECTORY", "/ratelimit"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", address.trim_end_matches("/0")),
        ("REDIS_SENTINEL_AUTH", "hunter2"),
        ("LOG_LEVEL", "info"),
    ];
    let servers = [(); 2].map(|()| Server::spawn(&mut ratelimit(&folder, &variables)));
    let ask = |server: &Server| {
        let question = r#"{"domain":"mongo_cps","descriptors":[{"entries":[{"key":"database","value":"users"}]}]}"#;
        let mut curl = curl();
        curl.args([
            "--silent",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ]);
        run(curl.args(["--data", question]).arg(server.url("/json"))).expect_success()
    };
    let [one, other] = &servers;
    assert_eq!([ask(one), ask(other), ask(one)], ["200", "200", "429"]);
    assert_eq!(one.get("/healthcheck"), "OK");
    let log = one.log();
    for expected in [
        "Envoy's rate limit service on 127.0.0.1:",
        "REDIS_SENTINEL_AUTH has no effect",
    ] {
        assert!(log.contains(expected), "{log}");
    }
    assert!(!log.contains("hunter2"), "{log}");
    for server in servers {
        server.stop();
    }
}

#[test]
fn what_it_cannot_do_is_said() {
    let folder = Folder::new();
    let told = run(ratelimit(&folder, &[]).arg("--help")).expect_success();
    assert!(told.contains("RUNTIME_ROOT"), "{told}");
    for (variables, expected) in [
        (
            &[("REDIS_URL", "/var/run/redis.sock")][..],
            "is a Unix socket",
        ),
        (&[("RUNTIME_ROOT", "/nonexistent")], "/nonexistent/config"),
        (
            &[("GRPC_UDS", "/run/a.sock"), ("GRPC_SERVER_USE_TLS", "true")],
            "write GRPC_HOST and GRPC_PORT in place of GRPC_UDS",
        ),
        (
            &[("GRPC_MAX_CONNECTION_AGE", "10ms")],
            "write at least 1s, or leave it out",
        ),
    ] {
        let ended = run(&mut ratelimit(&folder, variables));
        assert!(
            !ended.status.success() && ended.stderr.contains(expected),
            "{ended:?}"
        );
    }
}

/// Files of that service as rules.
#[test]
fn files_are_rewritten_as_rules() {
    let folder = Folder::new();
    folder.write("limits.yaml", LIMITS);
    let file = folder.path("limits.yaml");
    let rules = run(&mut quell(&["rules", "import", &file])).expect_success();
    folder.write("rules.yaml", &rules);
    let rules = folder.path("rules.yaml");
    run(&mut quell(&["rules", "check", &rules])).expect_success();
    let entry = "database=users";
    let told = run(&mut quell(&["rules", "explain", &rules, "-e", entry])).expect_success();
    assert!(
        told.contains("+ database_users: fixed_window 2 per calendar day"),
        "{told}"
    );
}
