//! RESP2, as Redis servers speak it: commands as bytes, and values of replies as Rust types.

use std::fmt;

/// A value of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    BulkString(Vec<u8>),
    Array(Vec<Value>),
    SimpleString(String),
    Okay,
    ServerError(ServerError),
}

/// An error that a server answered: its code, and what it says, on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ServerError(String);

impl ServerError {
    pub(crate) fn new(line: &[u8]) -> Self {
        Self(String::from_utf8_lossy(line).into_owned())
    }

    /// Its first word.
    pub(crate) fn code(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }

    /// Current place of a key, from a redirect: `HOST:PORT`.
    pub(crate) fn redirect(&self) -> Option<&str> {
        let mut words = self.0.split(' ');
        let is_redirect = matches!(words.next(), Some("MOVED" | "ASK"));
        words.nth(1).filter(|_| is_redirect)
    }
}

impl Value {
    /// The same without errors; the first one if there are any.
    ///
    /// # Errors
    /// The error that it is or contains.
    pub(crate) fn extract_error(self) -> Result<Self, ServerError> {
        match self {
            Self::ServerError(error) => Err(error),
            Self::Array(values) => {
                let values = values.into_iter().map(Self::extract_error);
                values.collect::<Result<_, _>>().map(Self::Array)
            }
            other => Ok(other),
        }
    }

    /// Converts the value to a type; `None` if it is not one.
    pub(crate) fn read<T: FromValue>(self) -> Option<T> {
        T::from_value(self)
    }
}

/// A type that values are read as.
pub(crate) trait FromValue: Sized {
    /// `None` if the value is of another kind.
    fn from_value(value: Value) -> Option<Self>;
}

impl FromValue for Value {
    fn from_value(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::BulkString(bytes) => Some(bytes),
            Value::SimpleString(text) => Some(text.into_bytes()),
            _ => None,
        }
    }
}

impl FromValue for String {
    fn from_value(value: Value) -> Option<Self> {
        Self::from_utf8(value.read()?).ok()
    }
}

/// Numbers also come as text.
macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl FromValue for $number {
            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::Int(number) => Self::try_from(number).ok(),
                    text => text.read::<String>()?.parse().ok(),
                }
            }
        }
    )+};
}

numbers!(u16, u64, usize);

impl<T: FromValue> FromValue for Vec<T> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Array(values) => values.into_iter().map(T::from_value).collect(),
            _ => None,
        }
    }
}

impl<A: FromValue, B: FromValue> FromValue for (A, B) {
    fn from_value(value: Value) -> Option<Self> {
        let Value::Array(values) = value else {
            return None;
        };
        let [first, second] = <[Value; 2]>::try_from(values).ok()?;
        Some((first.read()?, second.read()?))
    }
}

/// A command: a name and its arguments.
#[derive(Clone, Default)]
pub(crate) struct Cmd {
    words: usize,
    bytes: Vec<u8>,
}

/// A command without arguments.
pub(crate) fn cmd(name: &str) -> Cmd {
    let mut command = Cmd::default();
    command.arg(name);
    command
}

impl Cmd {
    /// Adds arguments.
    pub(crate) fn arg(&mut self, argument: impl Argument) -> &mut Self {
        argument.add_to(self);
        self
    }

    /// The command, for whoever has it borrowed from its arguments.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// The bytes that are sent.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", self.words).into_bytes();
        bytes.extend_from_slice(&self.bytes);
        bytes
    }

    fn word(&mut self, word: &[u8]) {
        self.words += 1;
        let length = format!("${}\r\n", word.len());
        self.bytes.reserve(length.len() + word.len() + 2);
        self.bytes.extend_from_slice(length.as_bytes());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// Shows no argument, since one may be a password.
impl fmt::Debug for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cmd({} words)", self.words)
    }
}

/// An argument of a command, or several of them.
pub(crate) trait Argument {
    fn add_to(&self, command: &mut Cmd);
}

impl Argument for [u8] {
    fn add_to(&self, command: &mut Cmd) {
        command.word(self);
    }
}

impl Argument for str {
    fn add_to(&self, command: &mut Cmd) {
        command.word(self.as_bytes());
    }
}

/// Texts and numbers, as they are displayed.
macro_rules! arguments {
    ($($number:ty),+) => {$(
        impl Argument for $number {
            fn add_to(&self, command: &mut Cmd) {
                command.word(self.to_string().as_bytes());
            }
        }
    )+};
}

arguments!(String, i32, u32, u64, usize);

impl<const N: usize> Argument for [u8; N] {
    fn add_to(&self, command: &mut Cmd) {
        command.word(self);
    }
}

impl Argument for Vec<u8> {
    fn add_to(&self, command: &mut Cmd) {
        command.word(self);
    }
}

impl Argument for [&str] {
    fn add_to(&self, command: &mut Cmd) {
        for word in self {
            command.word(word.as_bytes());
        }
    }
}

/// `None` is no argument.
impl<A: Argument> Argument for Option<A> {
    fn add_to(&self, command: &mut Cmd) {
        if let Some(argument) = self {
            argument.add_to(command);
        }
    }
}

impl<A: Argument + ?Sized> Argument for &A {
    fn add_to(&self, command: &mut Cmd) {
        (**self).add_to(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_texts() {
        let mut command = cmd("SET");
        command.arg(b"a\r\nb").arg(12_u64).arg(None::<&str>);
        command.arg(["x", ""].as_slice()).arg(String::from("y"));
        let expected =
            "*6\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$2\r\n12\r\n$1\r\nx\r\n$0\r\n\r\n$1\r\ny\r\n";
        assert_eq!(command.to_bytes(), expected.as_bytes());
        assert_eq!(command.take().to_bytes(), expected.as_bytes());
        assert_eq!(command.to_bytes(), b"*0\r\n");
        assert_eq!(format!("{:?}", cmd("AUTH").arg("secret")), "Cmd(2 words)");
    }

    #[test]
    fn values_are_read_as_what_they_are() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(text("7").read::<u64>(), Some(7));
        assert_eq!(Value::Int(7).read::<u16>(), Some(7));
        assert_eq!(Value::Int(-7).read::<u16>(), None);
        assert_eq!(Value::Int(65_536).read::<u16>(), None);
        assert_eq!(Value::Nil.read::<String>(), None);
        assert_eq!(
            Value::BulkString(vec![0xff]).read::<Vec<u8>>(),
            Some(vec![0xff])
        );
        assert_eq!(Value::BulkString(vec![0xff]).read::<String>(), None);
        let pair = Value::Array(vec![text("a"), Value::Int(1)]);
        assert_eq!(
            Value::Array(vec![pair.clone()]).read::<Vec<(String, u64)>>(),
            Some(vec![("a".to_owned(), 1)])
        );
        assert_eq!(pair.clone().read::<Vec<u64>>(), None);
        assert_eq!(Value::Array(vec![pair]).read::<(String, u64)>(), None);
    }

    #[test]
    fn an_error_is_found_wherever_it_stands() {
        let error = ServerError::new(b"MOVED 42 10.0.0.1:7000");
        let inside = Value::Array(vec![Value::Okay, Value::ServerError(error.clone())]);
        let outside = Value::Array(vec![inside, Value::Nil]);
        assert_eq!(outside.extract_error(), Err(error.clone()));
        assert_eq!(Value::Okay.extract_error(), Ok(Value::Okay));
        assert_eq!(error.code(), "MOVED");
        assert_eq!(error.redirect(), Some("10.0.0.1:7000"));
        assert_eq!(ServerError::new(b"ERR 42 here").redirect(), None);
        assert_eq!(ServerError::new(b"").code(), "");
    }
}
