//! Wire: a minimal RESP client, so that a run costs the client next to nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};

/// One connection to a server.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let reader = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        Ok(Self { stream, reader })
    }

    /// Sends frames without waiting.
    pub(super) fn send(&mut self, frames: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(frames)?)
    }

    /// Sends one command. Returns the reply as text, with one line per element of an array.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Result<String> {
        self.send(&frame(words))?;
        let mut text = String::new();
        self.reply(&mut text)?;
        text.pop();
        Ok(text)
    }

    /// A field of `INFO section`.
    pub(super) fn info(&mut self, section: &str, field: &str) -> Result<String> {
        let text = self.ask(&[b"INFO", section.as_bytes()])?;
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(name, _)| *name == field);
        Ok(found.map(|(_, value)| value.to_owned()).unwrap_or_default())
    }

    /// Processor time that the server has used so far, in microseconds.
    pub(super) fn processor_time(&mut self) -> Result<f64> {
        let mut micros = 0.0;
        for field in ["used_cpu_user", "used_cpu_sys"] {
            micros += self.info("cpu", field)?.parse::<f64>()? * 1e6;
        }
        Ok(micros)
    }

    /// Number of times that the server has run a command.
    pub(super) fn calls(&mut self, command: &str) -> Result<u64> {
        let line = self.info("commandstats", &format!("cmdstat_{command}"))?;
        let calls = line
            .split(',')
            .next()
            .and_then(|calls| calls.strip_prefix("calls="));
        Ok(calls.map_or(Ok(0), str::parse)?)
    }

    /// Reads one reply and appends it.
    pub(super) fn reply(&mut self, text: &mut String) -> Result<()> {
        let mut line = String::new();
        let count = self.reader.read_line(&mut line)?;
        ensure!(count > 0, "the server hung up");
        let (kind, rest) = line.trim_end().split_at_checked(1).context("no reply")?;
        match kind {
            "-" => bail!("the server says: {rest}"),
            "*" => {
                for _ in 0..rest.parse::<i64>()?.max(0) {
                    self.reply(text)?;
                }
            }
            "$" => {
                if let Ok(length) = usize::try_from(rest.parse::<i64>()?) {
                    let mut bytes = vec![0; length + 2];
                    self.reader.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    *text += &String::from_utf8_lossy(&bytes);
                }
                text.push('\n');
            }
            _ => {
                *text += rest;
                text.push('\n');
            }
        }
        Ok(())
    }
}

/// The bytes of a command.
pub(super) fn frame(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
