//! `redis-cli` and `redis-benchmark`, which know nothing about Quell.

use crate::clients::{redis_benchmark, redis_cli};
use crate::process::{run, run_with_input};
use crate::server::Server;

/// Output of redis-cli for these arguments, line by line.
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
