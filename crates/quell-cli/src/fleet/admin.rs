//! Admin: the client of a fleet's coordinators.

use anyhow::Result;
use clap::Args;
use quell_coordinator::status::FleetStatus;
use quell_server::config::FleetMember;
use serde::Serialize;

use crate::candidate::Runner;
use crate::client::{Client, ClientCredentials, HttpResponse, server_url};
use crate::exit::{Exit, NoAnswer};
use crate::output;

/// Where the fleet is shown.
const PATH: &str = "/v1/fleet";

/// What starts a coordinator.
const START: &str = "quell fleet coordinator";

/// A coordinator of the fleet.
#[derive(Clone, Debug, Args)]
pub(super) struct Coordinator {
    /// The address of a coordinator's --admin; if it does not lead, the leader is asked
    #[arg(
        long,
        env = "QUELL_FLEET_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:7601",
        value_parser = server_url
    )]
    url: String,

    #[command(flatten)]
    credentials: ClientCredentials,
}

/// The leader, or the coordinator that was asked if there is none.
pub(super) struct Leader {
    client: Client,
    pub(super) status: FleetStatus,
    /// The status as it came.
    pub(super) text: String,
}

impl Coordinator {
    /// Finds the leader.
    ///
    /// # Errors
    /// Why nobody answers.
    pub(super) fn leader(&self) -> Result<Leader> {
        let asked = self.ask(&self.url)?;
        let scheme = |url: &str| url.split_once("://").map(|(scheme, _)| scheme.to_owned());
        let elsewhere = asked.status.leader.as_ref().filter(|_| !asked.status.leads);
        // What is shown to this coordinator is not shown over a connection that is less safe.
        let elsewhere = elsewhere
            .and_then(|leader| leader.admin.as_ref())
            .filter(|url| scheme(url) == scheme(&self.url) && **url != self.url);
        match elsewhere {
            Some(url) => self.ask(url),
            None => Ok(asked),
        }
    }

    fn ask(&self, url: &str) -> Result<Leader> {
        let client = self.credentials.client(url, START)?;
        let answer = client.get(PATH)?.good()?;
        Ok(Leader {
            status: answer.json()?,
            text: answer.text,
            client,
        })
    }
}

/// How a change is made.
#[derive(Debug, Args)]
pub(super) struct How {
    #[command(flatten)]
    to: Coordinator,

    /// Why, for the coordinator's log and its list of changes
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl How {
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
        let asked = self.to.credentials.client(&self.to.url, START)?;
        self.change_at(&asked, path, body, done)
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
            let at = match self.status.leader.as_ref() {
                Some(leader) => format!("the leader is {}: say its --admin with --url", leader.url),
                None => "no coordinator leads now: try again in some seconds".to_owned(),
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

/// Reads the number of a node, or a name that ends with it.
pub(super) fn node(text: &str) -> Result<u32, String> {
    text.parse::<FleetMember>().map(|member| member.number())
}
