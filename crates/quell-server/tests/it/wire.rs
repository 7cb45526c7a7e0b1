//! RESP over raw sockets.

use crate::harness::Fixture;

#[test]
fn throttle_answers_as_redis_cell_does() {
    let server = Fixture::with_clock("", "");
    let ask = "CL.THROTTLE k 1 1 60\r\n";
    let reply = server.resp_exchange(format!("PING\r\n{ask}{ask}{ask}QUIT\r\nPING\r\n").as_bytes());
    assert_eq!(
        reply,
        "+PONG\r\n\
         *5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:60\r\n\
         *5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:120\r\n\
         *5\r\n:1\r\n:2\r\n:0\r\n:60\r\n:120\r\n\
         +OK\r\n"
    );
}
