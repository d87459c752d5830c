"""An adapter's eval set, and what versions measured by it came to."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from adapters.access import access_adapter, access_version
from adapters.eval_set import eval_set_of, remove_eval_set, save_eval_set
from adapters.evaluation import access_evaluation, begin_evaluation
from adapters.gate import set_gate
from adapters.models import EvalSet, Evaluation, EvaluationStatus, Gate
from adapters.profile import MAX_SYSTEM_PROMPT_CHARS
from tenants.api.base import TenantView
from tenants.api.errors import errors
from tenants.api.parsers import JSONParser
from tenants.models import KeyScope


class StrictSerializer(serializers.Serializer[Any]):
    """A field that is not known is an error, not ignored."""

    def to_internal_value(self, data: Any) -> Any:
        unknown = sorted(set(data) - set(self.fields)) if isinstance(data, dict) else []
        if unknown:
            known = ", ".join(self.fields)
            raise serializers.ValidationError(
                {str(name)[:80]: [f"Not known here; expected {known}."] for name in unknown}
            )
        return super().to_internal_value(data)


class TextField(serializers.CharField):
    """No number is taken for one."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class NewEvalSetSerializer(StrictSerializer):
    # What is wrong with it, line by line, adapters.eval_set says.
    content = TextField(
        trim_whitespace=False,
        help_text='JSON Lines: {"messages": […]} that end with the assistant\'s turn, or '
        '{"prompt", "completion"}; "golden": true on those that are to be answered too.',
    )


class EvalSetSerializer(serializers.ModelSerializer[EvalSet]):
    is_default = serializers.SerializerMethodField(
        help_text="The operator's, as the adapter has none of its own."
    )

    class Meta:
        model = EvalSet
        fields = [
            "sha256",
            "num_examples",
            "num_golden",
            "size_bytes",
            "is_default",
            "created_by",
            "created_at",
        ]
        read_only_fields = fields

    def get_is_default(self, row: EvalSet) -> bool:
        return not row.is_current


class NewEvaluationSerializer(StrictSerializer):
    system_prompt = TextField(
        max_length=MAX_SYSTEM_PROMPT_CHARS,
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text="What the base is told in its second turn; left out: the version's profile's.",
    )


class LossSerializer(serializers.Serializer[Any]):
    name = serializers.ChoiceField(choices=["base", "base_with_prompt", "adapter"])
    digest = serializers.CharField(allow_null=True)
    system_prompt = serializers.CharField(allow_blank=True)
    loss = serializers.FloatField(
        help_text="Mean negative log-likelihood of the completions' tokens."
    )
    perplexity = serializers.FloatField()
    num_tokens = serializers.IntegerField(help_text="Completion tokens that were scored.")


class GoldenAnswersSerializer(serializers.Serializer[Any]):
    base = serializers.CharField()
    base_with_prompt = serializers.CharField(required=False)
    adapter = serializers.CharField()


class GoldenSerializer(serializers.Serializer[Any]):
    line = serializers.IntegerField()
    prompt = serializers.CharField()
    expected = serializers.CharField()
    answers = GoldenAnswersSerializer()


class EvaluationUsageSerializer(serializers.Serializer[Any]):
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()


class ResultsSerializer(serializers.Serializer[Any]):
    contenders = LossSerializer(many=True)
    golden = GoldenSerializer(many=True)
    usage = EvaluationUsageSerializer(help_text="Not charged, and in no quota.")


class EvaluationSerializer(serializers.ModelSerializer[Evaluation]):
    id = serializers.CharField(source="public_id", read_only=True)
    status = serializers.ChoiceField(choices=EvaluationStatus.choices, read_only=True)
    results = ResultsSerializer(allow_null=True, read_only=True)

    class Meta:
        model = Evaluation
        fields = [
            "id",
            "status",
            "digest",
            "eval_set_sha256",
            "is_default_set",
            "num_examples",
            "system_prompt",
            "num_steps",
            "num_done",
            "model",
            "results",
            "error_code",
            "error",
            "created_by",
            "created_at",
            "finished_at",
        ]
        read_only_fields = fields


class GateSerializer(StrictSerializer):
    gate = serializers.ChoiceField(choices=Gate.choices)


class GateView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="gate_retrieve",
        responses={200: GateSerializer, **errors(401, 403, 404)},
    )
    def get(self, request: Request, tenant: str, name: str) -> Response:
        return Response({"gate": access_adapter(self.principal, name).gate})

    @extend_schema(
        operation_id="gate_update",
        request=GateSerializer,
        responses={200: GateSerializer, **errors(400, 401, 403, 404)},
        description="What a version must not be worse than, on the adapter's eval set, to become "
        "active for the first time, or a canary.",
    )
    def put(self, request: Request, tenant: str, name: str) -> Response:
        body = GateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        gate = Gate(body.validated_data["gate"])
        set_gate(self.principal, access_adapter(self.principal, name), gate, request)
        return Response({"gate": gate})


class EvalSetView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="eval_set_retrieve",
        responses={200: EvalSetSerializer, 204: None, **errors(401, 403, 404)},
        description="What the next evaluation uses; 204 when there is none.",
    )
    def get(self, request: Request, tenant: str, name: str) -> Response:
        row = eval_set_of(access_adapter(self.principal, name))
        if row is None:
            return Response(status=204)
        return Response(EvalSetSerializer(row).data)

    @extend_schema(
        operation_id="eval_set_update",
        request=NewEvalSetSerializer,
        responses={200: EvalSetSerializer, **errors(400, 401, 403, 404)},
    )
    def put(self, request: Request, tenant: str, name: str) -> Response:
        body = NewEvalSetSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        raw = body.validated_data["content"].encode()
        adapter = access_adapter(self.principal, name)
        row = save_eval_set(self.principal, adapter, raw, request)
        return Response(EvalSetSerializer(row).data)

    @extend_schema(operation_id="eval_set_destroy", responses={204: None, **errors(401, 403, 404)})
    def delete(self, request: Request, tenant: str, name: str) -> Response:
        remove_eval_set(self.principal, access_adapter(self.principal, name), request)
        return Response(status=204)


class EvaluationsView(TenantView):
    scope = KeyScope.ADAPTERS
    parser_classes = [JSONParser]

    @extend_schema(
        operation_id="evaluations_list",
        responses={200: EvaluationSerializer(many=True), **errors(401, 403, 404)},
        description="Newest first.",
    )
    def get(self, request: Request, tenant: str, name: str, number: int) -> Response:
        version = access_version(self.principal, name, number)
        return self.paginated(version.evaluations.all(), EvaluationSerializer)

    @extend_schema(
        operation_id="evaluations_create",
        request=NewEvaluationSerializer,
        responses={202: EvaluationSerializer, **errors(400, 401, 403, 404, 409)},
        description="Run in the background, on a replica, beside what it serves: the base, the "
        "base with the system prompt if there is one, and the version.",
    )
    def post(self, request: Request, tenant: str, name: str, number: int) -> Response:
        body = NewEvaluationSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        version = access_version(self.principal, name, number)
        prompt = body.validated_data.get("system_prompt")
        row = begin_evaluation(self.principal, version, prompt, request)
        return Response(EvaluationSerializer(row).data, status=202)


class EvaluationView(TenantView):
    scope = KeyScope.ADAPTERS

    @extend_schema(
        operation_id="evaluations_retrieve",
        responses={200: EvaluationSerializer, **errors(401, 403, 404)},
    )
    def get(
        self, request: Request, tenant: str, name: str, number: int, evaluation_id: str
    ) -> Response:
        version = access_version(self.principal, name, number)
        return Response(EvaluationSerializer(access_evaluation(version, evaluation_id)).data)
