//! The listener's side of the proof exchange.

use static_assertions::const_assert;

use super::wire::AuthMessage;
use super::{AuthError, Hello, Nonce, Secret, Service, Session, is_equal, transcript};
use crate::conn::Stream;

/// A listener's state for one caller, until the caller has proved itself. Call [`Answering::poll`]
/// until it returns a session or an error, and then drop this object.
#[derive(Clone, Copy, Debug)]
pub struct Answering {
    nonce: Nonce,
    message: AuthMessage,
    stage: AnswerStage,
}

// A stranger costs this much memory and its socket.
const_assert!(size_of::<Answering>() <= 128);

#[derive(Clone, Copy, Debug)]
enum AnswerStage {
    AwaitHello,
    SayHello(Hello),
    AwaitProof(Hello),
    Prove(Hello),
}

impl Answering {
    /// Creates the state for a caller that has sent nothing yet. The nonce must be random.
    pub const fn new(nonce: Nonce) -> Self {
        Answering { nonce, message: AuthMessage::EMPTY, stage: AnswerStage::AwaitHello }
    }

    /// Goes on as far as possible without waiting. After `None`, call again.
    ///
    /// # Errors
    /// The caller does not speak this exchange, or does not know the secret. A caller with another
    /// version or service has already received this end's version and service.
    pub fn poll(
        &mut self,
        secret: &Secret,
        service: Service,
        stream: &mut impl Stream,
    ) -> Result<Option<Session>, AuthError> {
        let ours = Hello::new(service, self.nonce);
        loop {
            match self.stage {
                AnswerStage::AwaitHello => {
                    let Some(theirs) = self.message.recv_hello(stream)? else { return Ok(None) };
                    self.stage = AnswerStage::SayHello(theirs);
                    self.message = AuthMessage::out(ours.to_bytes());
                }
                AnswerStage::SayHello(theirs) => {
                    if !self.message.send(stream)? {
                        return Ok(None);
                    }
                    theirs.check(service)?;
                    (self.stage, self.message) =
                        (AnswerStage::AwaitProof(theirs), AuthMessage::EMPTY);
                }
                AnswerStage::AwaitProof(theirs) => {
                    let Some(proof) = self.message.recv(stream)? else { return Ok(None) };
                    if !is_equal(&proof, &transcript(secret, b"caller", &theirs, &ours)) {
                        return Err(AuthError::Secret);
                    }
                    let proof = transcript(secret, b"listener", &theirs, &ours);
                    (self.stage, self.message) =
                        (AnswerStage::Prove(theirs), AuthMessage::out(proof));
                }
                AnswerStage::Prove(theirs) => {
                    if !self.message.send(stream)? {
                        return Ok(None);
                    }
                    return Ok(Some(Session::new(secret, &theirs, &ours)));
                }
            }
        }
    }
}
