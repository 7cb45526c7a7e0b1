//! A RESP client, for stores and for servers.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::process::PATIENCE;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Nothing,
    List(Vec<Self>),
}

impl Reply {
    /// A reply as text, with one line for each element of a list.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Nothing => "(nil)".to_owned(),
            Self::List(all) => {
                let lines: Vec<String> = all.iter().map(Self::text).collect();
                lines.join("\n")
            }
        }
    }

    /// The value of a field in a flat map.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        let Self::List(all) = self else { return None };
        let at = all.iter().step_by(2).position(|key| key.text() == name)?;
        all.get(2 * at + 1)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Resp(BufStream<TcpStream>);

impl Resp {
    pub(crate) async fn connect(port: u16) -> Result<Self> {
        let connect = TcpStream::connect(("127.0.0.1", port));
        let stream = timeout(PATIENCE, connect).await??;
        stream.set_nodelay(true)?;
        Ok(Self(BufStream::new(stream)))
    }

    /// Sends bytes built by `frame`.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).await?;
        Ok(self.0.flush().await?)
    }

    pub(crate) async fn read(&mut self) -> Result<Reply> {
        let reply = timeout(PATIENCE, read(&mut self.0)).await;
        reply.context("no reply")?
    }

    pub(crate) async fn command(&mut self, words: &[&str]) -> Result<Reply> {
        self.send(&frame(words)).await?;
        self.read().await
    }
}

/// Sends one command on a connection of its own, with a timeout; an error reply is an error.
pub(crate) async fn command(port: u16, words: &[&str], at_most: Duration) -> Result<Reply> {
    let asked = async { Resp::connect(port).await?.command(words).await };
    let reply = timeout(at_most, asked).await;
    match reply.with_context(|| format!("{words:?}: no reply within {at_most:?}"))?? {
        Reply::Error(error) => bail!("{words:?}: {error}"),
        reply => Ok(reply),
    }
}

/// The bytes of a command.
pub(crate) fn frame(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

fn read(stream: &mut BufStream<TcpStream>) -> BoxFuture<'_, Result<Reply>> {
    Box::pin(async move {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).context("the other end hung up")?;
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(rest.parse()?),
            "*" => {
                let Ok(count) = rest.parse::<usize>() else {
                    return Ok(Reply::Nothing);
                };
                ensure!(count < 1_000_000, "a list of {count}");
                let mut all = Vec::new();
                for _ in 0..count {
                    all.push(read(stream).await?);
                }
                Reply::List(all)
            }
            "$" => {
                let Ok(length) = rest.parse::<usize>() else {
                    return Ok(Reply::Nothing);
                };
                ensure!(length < 100_000_000, "a text of {length} bytes");
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes).await?;
                bytes.truncate(length);
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            other => bail!("cannot read a reply that begins with {other:?}"),
        })
    })
}
