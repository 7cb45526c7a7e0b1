//! HTTP requests that the fast path accepts: a full HTTP/1.1 parser must read the same request with
//! the same body, and nothing in it may ask for more than an answer.

use quell_core::charge::Operation;
use quell_protocol::http::find_question;

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(input: &[u8]) {
    let Some(question) = find_question(input) else {
        return;
    };
    let mut fields = [httparse::EMPTY_HEADER; 512];
    let mut request = httparse::Request::new(&mut fields);
    let head = match request.parse(input) {
        Ok(httparse::Status::Complete(head)) => head,
        other => panic!("taken, and {other:?} to another reader"),
    };
    let path = match question.operation {
        Operation::Peek => "/v1/peek",
        _ => "/v1/acquire",
    };
    assert_eq!((request.method, request.path), (Some("POST"), Some(path)));
    assert_eq!(request.version, Some(1));
    let mut length = None;
    for field in request.headers.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        assert!(!is("transfer-encoding") && !is("expect") && !is("upgrade"));
        if is("content-length") {
            assert_eq!(length, None, "two lengths");
            let text = std::str::from_utf8(field.value).expect("digits are text");
            length = Some(text.trim().parse::<usize>().expect("a length is a number"));
        }
    }
    let end = head + length.expect("a question has a length");
    assert_eq!(question.length, end);
    assert_eq!(question.body, &input[head..end]);
    let line = input
        .iter()
        .position(|byte| *byte == b'\n')
        .expect("a first line")
        + 1;
    assert_eq!(question.fields, &input[line..head]);
    // Bytes after the request change nothing.
    assert_eq!(find_question(&input[..end]), Some(question));
    assert_eq!(find_question(&input[..end - 1]), None);
}
