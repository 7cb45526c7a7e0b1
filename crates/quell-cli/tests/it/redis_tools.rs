//! `redis-cli` and `redis-benchmark`, which know nothing about Quell.

use crate::clients::{redis_benchmark, redis_cli};
use crate::files::{Folder, window_rules};
use crate::process::{run, run_with_input};
use crate::server::Server;

/// What redis-cli prints for these arguments, line by line.
fn cli(server: &Server, arguments: &[&str]) -> Vec<String> {
    let text = run(redis_cli(server.resp).args(arguments)).expect_success();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn cl_throttle_answers_as_redis_cell_does() {
    let server = Server::start(&[]);
    assert_eq!(cli(&server, &["PING"]), ["PONG"]);
    // One connection for all, so that no whole second passes in between.
    let commands = [
        "ECHO hello",
        "CL.THROTTLE user:1 1 2 60",
        "CL.THROTTLE user:1 1 2 60",
        "CL.THROTTLE user:1 1 2 60",
        // A peek changes nothing and always answers 0.
        "CL.THROTTLE user:1 1 2 60 0",
        // A call that can never fit has no wait.
        "CL.THROTTLE user:2 1 2 60 3",
    ];
    let text = run_with_input(&mut redis_cli(server.resp), commands.join("\n").as_bytes());
    let text = text.expect_success();
    let replies: Vec<&str> = text.lines().collect();
    let expected = "hello 0 2 1 -1 30 0 2 0 -1 60 1 2 0 30 60 0 2 0 -1 60 1 2 2 -1 0";
    assert_eq!(replies.join(" "), expected);
    server.stop();
}

#[test]
fn rules_answer_with_the_fields_of_the_json() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "2/min"));
    let server = Server::start(&["--rules", &rules]);
    let flat = cli(
        &server,
        &["QUELL.ACQUIRE", "shop", "COST", "2", "user", "alice"],
    );
    assert_eq!(flat[..4], ["allowed", "1", "binding", "per-user"]);
    let peek = cli(&server, &["QUELL.PEEK", "shop", "user", "alice"]);
    assert_eq!(peek[..2], ["allowed", "0"]);
    let map = cli(
        &server,
        &["-3", "--json", "QUELL.ACQUIRE", "shop", "user", "alice"],
    );
    let map: serde_json::Value = serde_json::from_str(&map.join("\n")).unwrap();
    assert_eq!(map["allowed"], false);
    assert_eq!(map["binding"], "per-user");
    assert_eq!(map["remaining"], 0);
    assert!(
        map["retry_after_ms"]
            .as_u64()
            .is_some_and(|wait| (1..=60_000).contains(&wait))
    );
    assert_eq!(map["decisions"][0]["outcome"], "deny");
    server.stop();
}

#[test]
fn sessions_switch_protocols() {
    let server = Server::start(&[]);
    let commands =
        b"HELLO 3\nPING\nHELLO 2\nPING\nSELECT 0\nCLIENT SETNAME me\nCLIENT GETNAME\nRESET\nQUIT\n";
    let text = run_with_input(&mut redis_cli(server.resp), commands).expect_success();
    for line in ["server", "proto", "PONG", "OK", "me", "RESET"] {
        assert!(
            text.lines().any(|said| said.contains(line)),
            "no {line} in {text}"
        );
    }
    let facts = cli(&server, &["INFO"]).join("\n");
    assert!(
        facts.contains("redis_version:") && facts.contains("tcp_port:"),
        "{facts}"
    );
    assert!(!cli(&server, &["COMMAND", "COUNT"]).is_empty());
    server.stop();
}

#[test]
fn mistakes_are_errors_and_the_connection_goes_on() {
    let folder = Folder::new();
    let rules = folder.write("shop.yaml", &window_rules("shop", "2/min"));
    let server = Server::start(&["--rules", &rules]);
    let commands = b"CL.THROTTLE k 1 0 60\nCL.THROTTLE k -1 1 60\nCL.THROTTLE k 1 1\nFLUSHALL\nQUELL.ACQUIRE nowhere a b\nPING\n";
    let text = run_with_input(&mut redis_cli(server.resp), commands).expect_success();
    let errors = text.lines().filter(|line| line.starts_with("ERR ")).count();
    assert_eq!(errors, 5, "{text}");
    assert!(text.trim_end().ends_with("PONG"), "{text}");
    server.stop();
}

#[test]
fn a_pipe_of_ten_thousand_commands_streams() {
    let server = Server::start(&[]);
    let commands: String = (0..10_000)
        .map(|call| format!("CL.THROTTLE user:{} 9 10 60\r\n", call % 100))
        .collect();
    let mut pipe = redis_cli(server.resp);
    let told = run_with_input(pipe.arg("--pipe"), commands.as_bytes()).expect_success();
    assert!(told.contains("errors: 0, replies: 10000"), "{told}");
    let throttle = |outcome: &str| {
        let labels = format!("domain=\"\",rule=\"cl.throttle\",outcome=\"{outcome}\"");
        server
            .metric(&format!("quell_decisions_total{{{labels}}}"))
            .unwrap()
    };
    // 100 keys of 10 units each; units that are refilled meanwhile, one per six seconds and key,
    // may pass too.
    let (allowed, refused) = (throttle("allow"), throttle("deny"));
    assert_eq!(allowed + refused, 10_000);
    assert!((1_000..2_000).contains(&allowed), "{allowed}");
    server.stop();
}

#[test]
fn redis_benchmark_finds_no_error() {
    let server = Server::start(&[]);
    for pipeline in ["1", "16", "128"] {
        let arguments = [
            "-e",
            "-q",
            "-n",
            "20000",
            "-c",
            "20",
            "-r",
            "1000",
            "-P",
            pipeline,
            "CL.THROTTLE",
            "user:__rand_int__",
            "99",
            "100",
            "60",
        ];
        let told = run(redis_benchmark(server.resp).args(arguments));
        assert!(told.status.success(), "{told:?}");
        assert!(told.stdout.contains("requests per second"), "{told:?}");
        assert!(!told.stdout.contains("Error from server"), "{told:?}");
        assert!(!told.stderr.contains("Error from server"), "{told:?}");
    }
    let labels = "domain=\"\",rule=\"cl.throttle\",outcome=\"allow\"";
    let allowed = server.metric(&format!("quell_decisions_total{{{labels}}}"));
    assert!(
        allowed.is_some_and(|allowed| allowed >= 1_000),
        "{allowed:?}"
    );
    server.stop();
}
