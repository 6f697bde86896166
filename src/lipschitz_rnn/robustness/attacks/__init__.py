"""Adversarial attacks: ``methods`` are the public functions, ``runner`` drives foolbox, ``result`` is what returns."""

from lipschitz_rnn.robustness.attacks.methods import deepfool as deepfool
from lipschitz_rnn.robustness.attacks.methods import fgsm as fgsm
from lipschitz_rnn.robustness.attacks.methods import pgd as pgd
from lipschitz_rnn.robustness.attacks.result import AttackResult as AttackResult
