//! Names of socket operations: whose it is and what it does, in one number.

/// What one of a worker's socket operations does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientToken {
    Receive(u32),
    Send(u32),
    Bell,
}

impl ClientToken {
    pub(super) fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Receive(index) => (0u64, index),
            Self::Send(index) => (1, index),
            Self::Bell => (2, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(super) fn decode(token: u64) -> Self {
        let index = token as u32;
        match token >> 32 {
            0 => Self::Receive(index),
            1 => Self::Send(index),
            _ => Self::Bell,
        }
    }
}

/// What one of the front desk's socket operations does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrontToken {
    Accept(u32),
    AcceptAdmin(u32),
    ReceiveAdmin(u32),
    SendAdmin(u32),
    Signal,
    Bell,
}

impl FrontToken {
    pub(super) fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Accept(index) => (0u64, index),
            Self::AcceptAdmin(index) => (1, index),
            Self::ReceiveAdmin(index) => (2, index),
            Self::SendAdmin(index) => (3, index),
            Self::Signal => (4, 0),
            Self::Bell => (5, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(super) fn decode(token: u64) -> Self {
        let index = token as u32;
        match token >> 32 {
            0 => Self::Accept(index),
            1 => Self::AcceptAdmin(index),
            2 => Self::ReceiveAdmin(index),
            3 => Self::SendAdmin(index),
            4 => Self::Signal,
            _ => Self::Bell,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_being_a_number() {
        for token in [ClientToken::Receive(u32::MAX), ClientToken::Send(0), ClientToken::Bell] {
            assert_eq!(ClientToken::decode(token.encode()), token);
        }
        let all = [
            FrontToken::Accept(3),
            FrontToken::AcceptAdmin(1),
            FrontToken::ReceiveAdmin(7),
            FrontToken::SendAdmin(1),
            FrontToken::Signal,
            FrontToken::Bell,
        ];
        for token in all {
            assert_eq!(FrontToken::decode(token.encode()), token);
        }
    }
}
