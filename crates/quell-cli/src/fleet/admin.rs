//! Admin: the client of a fleet's coordinators.

use anyhow::{Context as _, Result};
use clap::Args;
use quell_coordinator::name::check_leader;
use quell_coordinator::status::FleetStatus;
pub(super) use quell_host::fleet_member::read_number as node;
use serde::Serialize;

use crate::candidate::Runner;
use crate::client::{Client, ClientCredentials, HttpResponse, server_url};
use crate::exit::{Exit, NoAnswer};
use crate::output;

/// Path that shows the fleet.
const PATH: &str = "/v1/fleet";

/// Command that starts a coordinator.
const START: &str = "quell fleet coordinator";

/// Coordinators of the fleet.
#[derive(Clone, Debug, Args)]
pub(super) struct Coordinator {
    /// The address of a coordinator's --admin, or of several with commas. The first that answers is asked; if it
    /// does not lead, the leader is, if its host is among them or --ca vouches for it
    #[arg(
        long = "url",
        env = "QUELL_FLEET_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:7601",
        value_delimiter = ',',
        value_parser = server_url
    )]
    urls: Vec<String>,

    #[command(flatten)]
    credentials: ClientCredentials,
}

/// The leader, or the coordinator that was asked if there is none.
pub(super) struct Leader {
    client: Client,
    pub(super) status: FleetStatus,
    /// The status as it came.
    pub(super) text: String,
    /// Reason why the leader was not asked, although one is known.
    not_asked: Option<String>,
}

impl Coordinator {
    /// Finds the leader.
    ///
    /// # Errors
    /// Why nobody answers.
    pub(super) fn leader(&self) -> Result<Leader> {
        let (first, others) = self.urls.split_first().context("--url is empty")?;
        let mut answered = self.ask(first);
        let mut asked = first;
        for url in others {
            if answered.is_ok() {
                break;
            }
            (answered, asked) = (self.ask(url), url);
        }
        let answered = answered?;
        let elsewhere = answered.status.leader.as_ref();
        let elsewhere = elsewhere.filter(|_| !answered.status.leads);
        match elsewhere.and_then(|leader| leader.admin.clone()) {
            Some(url) if url != *asked => {
                match check_leader(&url, &self.urls, self.credentials.has_authority()) {
                    Ok(()) => self.ask(&url),
                    Err(why) => Ok(Leader {
                        not_asked: Some(why),
                        ..answered
                    }),
                }
            }
            _ => Ok(answered),
        }
    }

    /// A client of the first coordinator that answers, whether it leads or not; of the last one if none does.
    fn anybody(&self) -> Result<Client> {
        let (last, others) = self.urls.split_last().context("--url is empty")?;
        for url in others {
            let client = self.credentials.client(url, START)?;
            if client.get("/healthz").is_ok() {
                return Ok(client);
            }
        }
        self.credentials.client(last, START)
    }

    fn ask(&self, url: &str) -> Result<Leader> {
        let client = self.credentials.client(url, START)?;
        let answer = client.get(PATH)?.good()?;
        Ok(Leader {
            status: answer.json()?,
            text: answer.text,
            client,
            not_asked: None,
        })
    }
}

/// Options of a change.
#[derive(Debug, Args)]
pub(super) struct ChangeOptions {
    #[command(flatten)]
    to: Coordinator,

    /// Reason, for the coordinator's log and its list of changes
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl ChangeOptions {
    /// Makes a change at the leader, and says that it is made.
    ///
    /// # Errors
    /// Why it is not made.
    pub(super) fn change(&self, path: &str, body: &impl Serialize, done: &str) -> Result<Exit> {
        self.change_at(self.to.leader()?.client()?, path, body, done)
    }

    /// Makes a change at the coordinator that is asked, whether it leads or not, and says that it is made.
    ///
    /// # Errors
    /// Why it is not made.
    pub(super) fn change_anywhere(
        &self,
        path: &str,
        body: &impl Serialize,
        done: &str,
    ) -> Result<Exit> {
        self.change_at(&self.to.anybody()?, path, body, done)
    }

    fn change_at(
        &self,
        client: &Client,
        path: &str,
        body: &impl Serialize,
        done: &str,
    ) -> Result<Exit> {
        let mut body = serde_json::to_value(body)?;
        if let Some(reason) = &self.reason {
            body["reason"] = reason.as_str().into();
        }
        let answer = post(client, path, &body)?;
        if self.json {
            output::json_text(&answer.text)?;
        } else {
            output::line(done)?;
        }
        Ok(Exit::Fine)
    }
}

impl Leader {
    /// Reason why the leader was not asked, although one is known.
    pub(super) fn not_asked(&self) -> Option<&str> {
        self.not_asked.as_deref()
    }

    /// Posts `body` to `path` below that of the fleet.
    ///
    /// # Errors
    /// Why there is no good answer.
    pub(super) fn post(&self, path: &str, body: &impl Serialize) -> Result<HttpResponse> {
        post(self.client()?, path, body)
    }

    /// The client, if this coordinator leads.
    fn client(&self) -> Result<&Client> {
        if !self.status.leads {
            let at = match (&self.not_asked, self.status.leader.as_ref()) {
                (Some(why), _) => why.clone(),
                (None, Some(leader)) => {
                    format!(
                        "the leader is {}: name its --admin address with --url",
                        leader.url
                    )
                }
                (None, None) => "no coordinator leads now: try again in some seconds".to_owned(),
            };
            return Err(NoAnswer(format!("this coordinator does not lead; {at}")).into());
        }
        Ok(&self.client)
    }
}

fn post(client: &Client, path: &str, body: &impl Serialize) -> Result<HttpResponse> {
    let body = serde_json::to_string(body)?;
    client.post(&format!("{PATH}/{path}"), &body)?.good()
}

impl Runner for Coordinator {
    const COMMAND: &'static str = "quell fleet candidate";
    // It has the rules in files, or in one store.
    const HAS_STORES: bool = false;

    fn client(&self) -> Result<Client> {
        let leader = self.leader()?;
        leader.client()?;
        Ok(leader.client)
    }
}
